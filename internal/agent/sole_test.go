package agent

import (
	"testing"

	"github.com/berth-net/berth/internal/daemon"
	"github.com/berth-net/berth/internal/node"
	"github.com/berth-net/berth/internal/root"
	"golang.org/x/sys/unix"
)

// An agent starts where there is no room for its lock, such as in a container whose
// /run is read-only.
func TestStartWithoutLock(t *testing.T) {
	r := start(t)
	r.close()
	o, err := r.options()
	must(t, err)
	a, err := open(o, func() (*node.Node, error) {
		n, err := r.kernel()
		n.Sole = func(string, root.Dir) (*daemon.Lock, error) { return nil, unix.EROFS }
		return n, err
	}, false)
	must(t, err)
	if err := a.core.LockAgain(); err != nil {
		t.Errorf("the lock that it has not: %v", err)
	}
	must(t, a.Close())
	must(t, r.open())
	must(t, r.Restore(t.Context()))
}

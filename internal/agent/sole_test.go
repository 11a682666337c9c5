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
		n.Sole = func(string, root.Dir, *daemon.Lock) (*daemon.Lock, error) { return nil, unix.EROFS }
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

// The agent gives the lock back last: as long as anything of the agent can reach the kernel, no
// other agent may serve its instance.
func TestLockIsGivenBackLast(t *testing.T) {
	r := start(t)
	r.close()
	o, err := r.options()
	must(t, err)
	var held bool
	a, err := open(o, func() (*node.Node, error) {
		n, err := r.kernel()
		shut := n.Shut
		n.Shut = func() error {
			_, held = root.Locked(root.Lock(n.Instance, n.Netns.Ino))
			return shut()
		}
		return n, err
	}, false)
	must(t, err)
	must(t, a.Close())
	if !held {
		t.Error("another agent could have begun before this one's requests ended")
	}
	must(t, r.open())
	must(t, r.Restore(t.Context()))
}

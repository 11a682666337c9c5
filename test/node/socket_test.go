package node

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/berth-net/berth/internal/nettest"
)

// Somebody clears /run. The DEL that comes at once is done all the same, through
// the queue; and soon the agent can be reached again, without a new start.
func TestRunFolderRemoved(t *testing.T) {
	a := startAgent(t, "--pool=default=10.88.0.0/24,fd00:88::/64")
	pods, got := a.podsOf(2)
	gone := nettest.Pod(t)
	a.add("gone", gone)
	must(t, os.RemoveAll(a.root.Run()))
	must(t, a.tryDel("gone", gone.Ref().Path))
	nettest.NoPing(t, gone, got[0].addrs[0])

	nettest.Eventually(t, "the socket to be there again", func() bool { _, err := os.Lstat(a.root.Socket()); return err == nil })
	nettest.Eventually(t, "the marker of the epoch to be there again, which keeps an agent in another namespace from starting", func() bool {
		_, err := os.Lstat(filepath.Join(a.root.Run(), "epoch"))
		return err == nil
	})
	nettest.Eventually(t, "the deletion to be done", func() bool { return len(a.list()) == 2 })
	pod := nettest.Pod(t)
	later := a.add("later", pod)
	pingAll(t, pod, got[0])
	pingAll(t, pods[1], later)
	a.wantClean()
}

package failures

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/root"
	"github.com/berth-net/berth/test/programs"
)

// What several systems got wrong alike: a DEL that finds no agent.

// cilium #22067, #40931: pods were stuck or leaked while the agent was away,
// most of all when the node shut down. multus #1372, #822: DEL hung or failed
// while another server was down. containerd #8774, #11209: a sandbox could not be
// removed because the agent was gone. Here DEL succeeds without waiting, the pod
// is cut off, and the agent gives the rest back when it starts.
func TestAgentIsAway(t *testing.T) {
	n := newNode(t, plain)
	dead := n.add("dead", nettest.Pod(t))
	forgot := nettest.Pod(t)
	n.add("forgotten", forgot) // by a runtime that has lost the result
	alive := n.add("alive", nettest.Pod(t))
	nettest.Ping(t, nil, dead.Addr)
	n.Crash()
	for range 2 {
		n.del("dead", dead.prevResult())
		n.del("forgotten")
	}
	nettest.NoPing(t, nil, dead.Addr)
	nettest.Ping(t, nil, alive.Addr)
	_, err := n.tryAdd("new", nettest.Pod(t))
	programs.WantError(t, err, 11, "berthd")
	_, err = n.exec(call{verb: "STATUS"})
	programs.WantError(t, err, 50, "berthd")

	n.Again()
	heir := n.add("dead", nettest.Pod(t)) // the agent must spare this pod when it does the queued deletions
	n.restart()
	nettest.Eventually(t, "the deleted ones to be gone", func() bool { return len(programs.List(n.t, n.API)) == 2 })
	nettest.Ping(t, nil, heir.Addr)
	nettest.Ping(t, nil, alive.Addr)
	n.Audit(n.t)
}

// cilium, from source: the queue took 256 deletions, and the others were lost. Here the queue
// takes all deletions that come.
func TestManyDeletionsWait(t *testing.T) {
	n := newNode(t, plain)
	pods := n.burst(20)
	n.Crash()
	for i := range 300 {
		n.del(fmt.Sprint("never", i))
	}
	for i, p := range pods {
		n.del(fmt.Sprint("burst", i), p.prevResult())
	}
	n.Again()
	n.wantNothing()
	if left := waiting(t, n); len(left) > 0 {
		t.Errorf("deletions are done and still wait: %v", left)
	}
}

// multus #1087: a reboot truncated the file that DEL needed, and DEL answered success. cilium,
// from source: queued deletions were not fsynced, and what could not be read was removed. Here
// the agent sets a damaged deletion aside, shows it, and deletes nothing by guessing.
func TestTruncatedDeletion(t *testing.T) {
	n := newNode(t, plain)
	for i := range 3 {
		n.add(fmt.Sprint("c", i), nettest.Pod(t))
	}
	n.Crash()
	n.del("c0")
	files := waiting(t, n)
	if len(files) != 1 {
		t.Fatalf("waiting are %v, want one", files)
	}
	raw, err := os.ReadFile(files[0])
	if err == nil { // in a spare file there are blanks behind the deletion
		err = os.Truncate(files[0], int64(len(bytes.TrimSpace(raw))/2))
	}
	must(t, err)
	n.del("c1")
	n.Again()
	nettest.Eventually(t, "the whole one to be done", func() bool { return !n.has("c1") })
	if !n.has("c0") || !n.has("c2") {
		t.Error("a damaged deletion has deleted something")
	}
	aside := filepath.Join(folder(n), "damaged", filepath.Base(files[0]))
	if _, err := os.Stat(aside); err != nil {
		t.Errorf("the damaged one is not set aside: %v", err)
	}
	if out, err := n.Berth(t.Context(), "owed"); err != nil || !strings.Contains(out, filepath.Base(aside)) {
		t.Errorf("berth owed: %v\n%s", err, out)
	}
	if out, err := n.Berth(t.Context(), "audit"); err == nil || !strings.Contains(out, "damaged") {
		t.Errorf("berth audit: %v\n%s", err, out)
	}
	if err := os.Remove(aside); err != nil {
		t.Error(err)
	}
}

// multus #1239, #1084: every error of DEL was hidden. cilium, general: some errors of DEL were
// hidden, too. multus #355, #922: a failed DEL removed what its next try needed. Here a DEL
// that cannot be promised fails with "try again", and succeeds once it can be promised.
func TestDelSaysWhatFails(t *testing.T) {
	n := newNode(t, plain)
	n.add("c", nettest.Pod(t))
	n.Crash()
	must(t, os.Rename(folder(n), folder(n)+".away"))
	must(t, os.WriteFile(folder(n), nil, 0o600))
	programs.WantError(t, n.tryDel("c"), 11, "deletions")
	must(t, os.Remove(folder(n)))
	must(t, os.Rename(folder(n)+".away", folder(n)))
	n.del("c")
	n.Again()
	n.wantNothing()
}

// folder returns the folder of the deletion queue.
func folder(n *node) string { return filepath.Join(root.Dir(n.Root).State(), "deletions") }

// waiting returns the files of deletions that no agent has done yet.
func waiting(t *testing.T, n *node) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(folder(n), "*.json"))
	must(t, err)
	return files
}

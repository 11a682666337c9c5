package node

import (
	"os"
	"strings"
	"testing"

	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/test/programs"
)

// Somebody takes away all that the agent had, the state and the run folder, while pods run. A
// DEL without a result cuts its pod off all the same. No agent begins the root anew over the
// pods that are left, because their DELs would find nothing to do. A rebuilt ledger adopts
// these pods.
func TestBothFoldersLost(t *testing.T) {
	a := startAgent(t, pools)
	pods, got := a.podsOf(3)
	raw, err := os.ReadFile(a.root.Instance())
	must(t, err)
	a.kill()
	a.lose(a.root.State())
	a.lose(a.root.Run())

	if err := a.tryDel("c1", pods[1].Ref().Path); err != nil {
		t.Errorf("DEL without a result and without an agent: %v", err)
	}
	nettest.NoPing(t, pods[0], got[1].addrs[0])
	for range 2 {
		a.refused("the node has pods of an agent that does not run", "links on the node (3, such as b", strings.TrimSpace(string(raw)), a.root.Instance(), "--rebuild-ledger", "--moved")
	}
	if _, err := os.Stat(a.root.Instance()); err == nil {
		t.Error("the refusal has begun an instance")
	}
	pingAll(t, pods[0], got[2])
	must(t, os.WriteFile(a.root.Instance(), raw, 0o600))
	a.rebuild()
	a.start()
	nettest.Eventually(t, "the deleted pod is gone", func() bool { return len(a.list()) == 2 })
	pingAll(t, pods[0], got[2])
	pingAll(t, pods[2], got[0])
	a.del("c0")
	a.del("c2")
	a.wantGone()
}

// Both folders are lost while pods run, and somebody says that nobody will ever delete the pods that
// are left; or all deletions of these pods are queued, with ADD's results.
func TestBothFoldersLostAndPodsGivenUp(t *testing.T) {
	for _, queued := range []bool{false, true} {
		a := newAgent(t, nettest.Node(t), pools)
		a.start()
		raw, err := a.exec("ADD", "c", nettest.Pod(t).Ref().Path)
		must(t, err)
		is, err := programs.ReadResult(raw)
		must(t, err)
		a.kill()
		a.lose(a.root.State())
		a.lose(a.root.Run())
		if !queued {
			a.start("--moved")
			continue
		}
		must(t, a.tryDel("c", "", `"prevResult":`+string(raw)))
		a.start()
		nettest.Eventually(t, "the pod is gone", func() bool {
			return !strings.Contains(nettest.Snapshot(t, a.node).Only("link").String(), is.Host)
		})
	}
}

// An agent is to start for the first time while another agent of the node, which has pods, is away
// for a moment: the new agent refuses until the other agent is back, and queued deletions name no pod
// of the other agent. A DEL with a mistyped root says so, as long as the pod's agent lives.
func TestFirstStartBesideAnother(t *testing.T) {
	other := startAgent(t, "--pool=default=10.89.0.0/24")
	pods, got := other.podsOf(2)
	a := newAgent(t, nil, pools)
	programs.WantError(t, a.tryDel("c1", pods[1].Ref().Path), 7, "no agent has ever run with this root")
	nettest.Ping(t, pods[0], got[1].addrs[0])
	other.kill()
	a.refused("the node has pods of an agent that does not run", "start that agent first")
	other.start()
	a.start()
	a.remove()
	pingAll(t, pods[0], got[1])
	other.wantClean()
}

// Package failures has a test for each failure of other container network
// systems that a node with Berth could have as well: with the real programs,
// one file a system. docs/RELIABILITY.md is the list, and rows_test.go compares
// it with the tests.
package failures

import (
	"context"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/process"
	"github.com/berth-net/berth/test/programs"
)

func TestMain(m *testing.M) { programs.Main(m) }

var must = nettest.Must

// Configurations of the agent.
const (
	plain = "pools:\n- {name: default, cidrs: [10.88.0.0/24, 'fd00:88::/64']}\n"
	// brisk looks each second for what is missing or left over.
	brisk = "sweepInterval: 1s\n" + plain
	// roomy has addresses for tests that begin anew.
	roomy = "pools:\n- {name: default, cidrs: [10.88.0.0/20]}\n"
	// single has one address, which rests no longer than it must.
	single = "cooldown: 1ms\npools:\n- {name: default, cidrs: [10.88.0.7/32]}\n"
)

// node is the test's node with an agent, which may be killed. At the test's end
// the agent must give back all that it has.
type node struct {
	*programs.Node
	t     *testing.T
	bin   string        // folder of Berth's programs
	empty nettest.State // with the agent, without an attachment
}

// newNode starts an agent with a configuration.
func newNode(t *testing.T, config string) *node {
	t.Helper()
	nettest.Need(t)
	address(t)
	bin, before := programs.Own(t), look(t)
	n := &node{Node: programs.RunNode(t, bin, config), t: t, bin: bin}
	n.empty = look(t)
	t.Cleanup(func() { n.giveBack(before) })
	return n
}

// look is the oracle's view of the node, without the mounts and sysctls that come
// and go with the pods that the test makes.
func look(t *testing.T) nettest.State { return nettest.Snapshot(t, nil).Without("mount", "sysctl") }

// address gives the node an address from which the node talks to pods.
func address(t *testing.T) {
	t.Helper()
	nettest.Run(t, nil, "ip address replace 192.0.2.1/32 dev lo")
}

// giveBack detaches every pod, wants nothing to be left of them, and removes
// the agent, after which the node has to be as it was.
func (n *node) giveBack(before nettest.State) {
	if _, err := n.API.Health(context.Background()); err != nil {
		n.Again()
	}
	programs.DetachAll(n.t, n.API)
	n.wantNothing()
	if err := n.Stop(); err != nil {
		n.t.Error(err)
	}
	if err := n.Remove(); err != nil {
		n.t.Errorf("%v\n%s", err, n.LastWords())
	}
	nettest.Same(n.t, before, look(n.t), "left behind when the agent was removed")
}

// wantNothing waits until nothing is left of any pod, and audits.
func (n *node) wantNothing() {
	n.t.Helper()
	diff := ""
	r := nettest.Record(n.t, func(t testing.TB) {
		nettest.Eventually(t, "nothing to be left", func() bool {
			diff = n.empty.Diff(look(n.t))
			return diff == "" && len(programs.List(n.t, n.API)) == 0
		})
	})
	if r.Failed {
		n.t.Fatalf("%d attachments are left, and of them:\n%s", len(programs.List(n.t, n.API)), diff)
	}
	n.Audit(n.t)
}

// has reports whether a container is attached.
func (n *node) has(container string) bool {
	return slices.ContainsFunc(programs.List(n.t, n.API), func(at api.Attachment) bool {
		return at.ContainerID == container && at.State == "attached"
	})
}

// pool returns the figures of the first CIDR.
func (n *node) pool() api.PoolCIDR {
	n.t.Helper()
	ps, err := n.API.Pools(context.Background())
	must(n.t, err)
	return ps[0].CIDRs[0]
}

// restart kills the agent by SIGKILL, and starts it again.
func (n *node) restart() {
	n.t.Helper()
	n.Crash()
	n.Again()
}

// freeze stops the agent where it is; thaw lets it go on.
func (n *node) freeze() (thaw func()) {
	n.t.Helper()
	pid := n.PID()
	must(n.t, process.Freeze(pid))
	thaw = func() { _ = unix.Kill(pid, unix.SIGCONT) } // the agent may have been killed
	n.t.Cleanup(thaw)
	return thaw
}

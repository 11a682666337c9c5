// Package failures has a test for each failure of other container network
// systems that a node with Berth could have as well: with the real programs,
// one file a system. docs/RELIABILITY.md is the list, and rows_test.go compares
// it with the tests.
package failures

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/api/client"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/root"
	"github.com/berth-net/berth/test/programs"
)

func TestMain(m *testing.M) { programs.Main(m) }

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

// node is the test's node with an agent, which may be killed. With the test
// all that it has must be given back.
type node struct {
	*programs.Agent
	t     *testing.T
	bin   string        // folder of Berth's programs
	empty nettest.State // with the agent, without an attachment
}

// newNode starts an agent with a configuration.
func newNode(t *testing.T, config string) *node {
	t.Helper()
	nettest.Need(t)
	address(t)
	dir := root.Dir(t.TempDir())
	if err := os.MkdirAll(filepath.Dir(dir.Config()), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dir.Config(), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	bin, before := programs.Own(t), look(t)
	n := &node{Agent: programs.Run(t, bin, string(dir)), t: t, bin: bin}
	n.empty = look(t)
	t.Cleanup(func() { n.giveBack(before) })
	return n
}

// look is the oracle's view of the node, without what pods of the test's own
// making come and go with.
func look(t *testing.T) nettest.State { return nettest.Snapshot(t, nil).Without("mount", "sysctl") }

// address gives the node an address that it talks to pods from.
//
//	ip address replace 192.0.2.1/32 dev lo
func address(t *testing.T) {
	t.Helper()
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	addr, err := netlink.ParseAddr("192.0.2.1/32")
	if err == nil {
		err = netlink.AddrReplace(lo, addr)
	}
	if err != nil {
		t.Fatalf("adding 192.0.2.1 to lo: %v", err)
	}
}

// giveBack detaches every pod, wants nothing to be left of them, and removes
// the agent, after which the node has to be as it was.
func (n *node) giveBack(before nettest.State) {
	if _, err := n.API.Health(context.Background()); err != nil {
		n.startAgain()
	}
	for _, at := range n.list() {
		if _, err := n.API.DeleteOne(context.Background(), at.ID, true); err != nil && !client.IsUnknown(err) {
			n.t.Errorf("detaching %s: %v", at.ContainerID, err)
		}
	}
	n.wantNothing()
	if err := n.Stop(); err != nil {
		n.t.Error(err)
	}
	if out, err := exec.Command(filepath.Join(n.bin, "berthd"), "--root", n.Root, "--remove").CombinedOutput(); err != nil {
		n.t.Errorf("berthd --remove: %v\n%s", err, out)
	}
	if diff := before.Diff(look(n.t)); diff != "" {
		n.t.Errorf("left behind when the agent was removed:\n%s", diff)
	}
}

// wantNothing waits until nothing is left of any pod, and audits.
func (n *node) wantNothing() {
	n.t.Helper()
	diff := ""
	r := nettest.Record(n.t, func(t testing.TB) {
		nettest.Eventually(t, "nothing to be left", func() bool {
			diff = n.empty.Diff(look(n.t))
			return diff == "" && len(n.list()) == 0
		})
	})
	if r.Failed {
		n.t.Fatalf("%d attachments are left, and of them:\n%s", len(n.list()), diff)
	}
	n.wantClean()
}

// wantClean fails the test if an audit finds anything.
func (n *node) wantClean() {
	n.t.Helper()
	if _, err := n.Berth(context.Background(), "audit"); err != nil {
		n.t.Error(err)
	}
}

func (n *node) list() []api.Attachment {
	n.t.Helper()
	l, err := n.API.List(context.Background(), api.Filter{})
	if err != nil {
		n.t.Fatal(err)
	}
	return l
}

// has reports whether a container is attached.
func (n *node) has(container string) bool {
	for _, at := range n.list() {
		if at.ContainerID == container && at.State == "attached" {
			return true
		}
	}
	return false
}

// pool returns the figures of the first CIDR.
func (n *node) pool() api.PoolCIDR {
	n.t.Helper()
	ps, err := n.API.Pools(context.Background())
	if err != nil {
		n.t.Fatal(err)
	}
	return ps[0].CIDRs[0]
}

// restart is SIGKILL and another start.
func (n *node) restart() {
	n.t.Helper()
	n.kill()
	n.startAgain()
}

func (n *node) kill() {
	n.t.Helper()
	if err := n.Kill(); err != nil {
		n.t.Fatal(err)
	}
	n.API.Close()
}

func (n *node) startAgain() {
	n.t.Helper()
	if err := n.Start(context.Background()); err != nil {
		n.t.Fatal(err)
	}
}

// pid is berthd's process.
func (n *node) pid() int {
	n.t.Helper()
	st, err := n.API.Status(context.Background(), "")
	if err != nil {
		n.t.Fatal(err)
	}
	return st.PID
}

// freeze stops the agent where it is; thaw lets it go on.
func (n *node) freeze() (thaw func()) {
	n.t.Helper()
	pid := n.pid()
	if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
		n.t.Fatal(err)
	}
	thaw = func() { _ = unix.Kill(pid, unix.SIGCONT) } // it may have been killed
	n.t.Cleanup(thaw)
	return thaw
}

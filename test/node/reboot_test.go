package node

import (
	"bytes"
	"net/netip"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/test/programs"
)

// reboot takes away what a reboot takes: the process, the node's and the pods'
// network namespaces, and what lies in /run. The agent starts in a new
// namespace of the node.
func (a *agent) reboot(pods ...*ns.Netns) {
	a.t.Helper()
	a.kill()
	for _, p := range append(pods, a.node) {
		nettest.Delete(a.t, p)
	}
	must(a.t, os.RemoveAll(a.root.Run()))
	a.node = nettest.Node(a.t)
}

// After a reboot every earlier attachment is released without anybody asking,
// its addresses rest, and the runtime's late DELs succeed (multus #239, #323,
// cri #948, cri-o #4727: DEL was skipped, as the network namespace was gone;
// plugins #252, #332: reservations outlived the reboot).
func TestReboot(t *testing.T) {
	for _, c := range []struct {
		name string
		boot bool // the boot id is another one, as it is after a real reboot
	}{{"same boot id", false}, {"another boot id", true}} {
		t.Run(c.name, func(t *testing.T) {
			nettest.Need(t)
			a := newAgent(t, nettest.Node(t), "--pool=default=10.88.0.0/29") // 6 addresses
			a.start()
			pods, got := a.podsOf(3)
			before := map[netip.Addr]bool{}
			for _, g := range got {
				before[g.addrs[0]] = true
			}
			a.del("c0") // which the crash may overtake
			if c.boot {
				nettest.AnotherBoot(t)
			}
			a.reboot(pods...)
			a.start()
			a.wantGone()

			if p := a.pools(); p.Used != 0 || p.Resting != 3 {
				t.Errorf("%d addresses are used and %d rest, want 0 and 3", p.Used, p.Resting)
			}
			a.del("c1")
			if err := a.tryDel("c2", pods[2].Ref().Path); err != nil {
				t.Errorf("DEL with the path of a network namespace that the reboot took: %v", err)
			}
			var again []*ns.Netns
			for i := range 3 {
				again = append(again, nettest.Pod(t))
				g := a.add([]string{"c0", "n1", "n2"}[i], again[i]) // one of the containers has the id of an old container
				if before[g.addrs[0]] {
					t.Errorf("%s was given again", g.addrs[0])
				}
				nettest.Ping(t, again[0], g.addrs[0])
			}
			_, err := a.tryAdd("n3", nettest.Pod(t))
			programs.WantError(t, err, 100, "3 in use, 3 in cooldown")
			a.wantClean()
			a.releaseAll()
		})
	}
}

// pools returns the figures of the first CIDR.
func (a *agent) pools() api.PoolCIDR {
	a.t.Helper()
	ps, err := a.api.Pools(a.t.Context())
	must(a.t, err)
	return ps[0].CIDRs[0]
}

// After a reboot, the path of a pod's network namespace may lead to another pod's namespace,
// with an interface of the same name: the agent touches nothing there.
func TestRebootSparesWhoHasThePath(t *testing.T) {
	nettest.Need(t)
	a := newAgent(t, nettest.Node(t), pools)
	a.start()
	pods, _ := a.podsOf(1)
	path := pods[0].Ref().Path
	a.reboot(pods...)

	stranger := nettest.Pod(t)
	must(t, os.WriteFile(path, nil, 0o600))
	must(t, unix.Mount(stranger.Ref().Path, path, "", unix.MS_BIND, ""))
	defer func() { unix.Unmount(path, unix.MNT_DETACH); os.Remove(path) }()
	nettest.Run(t, stranger, "ip link add eth0 type veth peer name other")
	before := nettest.Snapshot(t, stranger)
	a.start()
	a.wantGone()
	if err := a.tryDel("c0", path); err != nil {
		t.Errorf("DEL: %v", err)
	}
	nettest.Same(t, before, nettest.Snapshot(t, stranger), "a stranger's network namespace was changed")
}

// In the same boot another network namespace is a mistake that would release
// every pod: berthd refuses to start there, and goes on where it ran.
func TestMovedByMistake(t *testing.T) {
	nettest.Need(t)
	home, other := nettest.Node(t), nettest.Node(t)
	a := newAgent(t, home, pools)
	a.start()
	pods, got := a.podsOf(2)
	a.kill()
	read := func() []byte {
		raw, err := os.ReadFile(a.root.Ledger())
		must(t, err)
		return raw
	}
	ledger, files := read(), nettest.Files(t, string(a.root))
	world := nettest.Snapshot(t, home).And(nettest.Snapshot(t, pods[0])).Deliberate()

	a.node = other
	a.refused("another network namespace", "--moved", a.root.Run())
	if !bytes.Equal(ledger, read()) {
		t.Error("the refusal changed the ledger")
	}
	nettest.Same(t, files, nettest.Files(t, string(a.root)), "the refusal changed files")
	nettest.Same(t, world, nettest.Snapshot(t, home).And(nettest.Snapshot(t, pods[0])).Deliberate(), "the refusal changed the network namespace where the pods are")

	a.node = home
	a.start()
	if n := len(a.list()); n != 2 {
		t.Errorf("%d attachments after the refusal, want 2", n)
	}
	pingAll(t, pods[0], got[1])
	a.wantClean()
	a.kill()

	a.node = other
	a.start("--moved")
	a.wantGone()
	a.del("c0")
	g := a.add("c0", nettest.Pod(t))
	for _, old := range got {
		if g.addrs[0] == old.addrs[0] {
			t.Errorf("%s was given again", g.addrs[0])
		}
	}
	a.kill()
	a.start() // --moved was meant, and need not be given twice
	a.releaseAll()
}

// The run folder is lost, and the agent is started in another network namespace by mistake, in
// the same boot. The pods' namespaces are where they were: the agent gives no pod up, unless
// somebody says so.
func TestMovedByMistakeWithoutMarker(t *testing.T) {
	home := nettest.Node(t)
	a := newAgent(t, home, pools)
	a.start()
	pods, got := a.podsOf(2)
	a.kill()
	a.lose(a.root.Run())
	a.node = nettest.Node(t)
	for range 2 { // the refusal leaves no marker either
		a.refused("another network namespace", "the network namespace of net/c", "/run/netns/", "--moved")
	}
	a.node = home
	a.start()
	pingAll(t, pods[0], got[1])
	a.wantClean()
	a.kill()
	a.lose(a.root.Run())
	a.node = nettest.Node(t)
	for _, p := range pods { // as when a node that is a container was started again
		nettest.Delete(t, p)
	}
	a.start()
	a.wantGone()
}

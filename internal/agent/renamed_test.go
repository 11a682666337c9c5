package agent

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/berth-net/berth/internal/attachment"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/stamp"
)

// renameLink gives a container's host veth another name, as another program may do at any time. It
// returns the veth's index.
func (r *rig) renameLink(container, name string) (index int) {
	r.t.Helper()
	host, _ := r.linkOf(container)
	l := nettest.Link(r.t, host)
	must(r.t, netlink.LinkSetName(l, name))
	return l.Attrs().Index
}

// linkAt reports whether a link has the index, whatever the link's name is.
func linkAt(index int) bool {
	_, err := netlink.LinkByIndex(index)
	return err == nil
}

// A pod whose host veth was renamed is cut off when its DEL returns, and its
// address is good for the next pod.
func TestDeleteRenamed(t *testing.T) {
	for name, prepare := range map[string]func(r *rig){
		"by the agent that attached it": func(*rig) {},
		"after a restart":               func(r *rig) { r.restart() },
	} {
		t.Run(name, func(t *testing.T) {
			r := start(t, "default=10.88.0.0/30") // two addresses
			living, dead := nettest.Pod(t), nettest.Pod(t)
			to := addresses(r.add(request("living", living)))[0]
			was := addresses(r.add(request("dead", dead)))[0]
			index := r.renameLink("dead", "mine0")
			prepare(r)
			must(t, netlink.LinkSetName(&netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: index}}, "mine1"))
			r.del("dead", false)
			nettest.NoPing(t, dead, to)
			r.del("dead", true)
			if linkAt(index) {
				t.Error("its link is there")
			}
			r.wantClean()

			next := nettest.Pod(t)
			if now := addresses(r.add(request("next", next))); !slices.Equal(now, []netip.Addr{was}) {
				t.Errorf("the next pod has %v, not %v", now, was)
			}
			nettest.Ping(t, next, to)
			nettest.Ping(t, living, was)
		})
	}
}

// A link with this instance's alias and no owner is left over, whatever its name is, and the
// sweep removes it. The sweep leaves a link of another instance alone.
func TestSweepRemovesRenamedOrphans(t *testing.T) {
	r := start(t)
	orphan := func(name, instance string) int {
		must(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: "peer" + name}))
		alias := stamp.Alias(instance, hold.NewID(), attachment.Key{Network: "n", ContainerID: name, Ifname: "eth0"}, 0)
		must(t, netlink.LinkSetAlias(nettest.Link(t, name), alias))
		return nettest.Link(t, name).Attrs().Index
	}
	ours, others := orphan("mine0", r.core.Instance), orphan("mine1", "zzzzzzzzzz")
	defer netlink.LinkDel(nettest.Link(t, "mine1"))
	for range 2 {
		if got := r.findings(); !slices.Equal(got, []string{"left-over link"}) {
			t.Errorf("an audit finds %v", got)
		}
		r.Sweep(t.Context())
	}
	if linkAt(ours) || !linkAt(others) {
		t.Errorf("ours is there: %t, another's: %t", linkAt(ours), linkAt(others))
	}
	r.wantClean()
}

// A rebuild of the ledger knows a renamed link by the link's alias.
func TestRebuildRenamed(t *testing.T) {
	r := start(t)
	pod, other := nettest.Pod(t), nettest.Pod(t)
	res := r.add(request("c", pod))
	r.add(request("d", other))
	index := r.renameLink("c", "mine0")
	r.lose(false)
	made, err := r.rebuild()
	must(t, err)
	if len(made.Pods) != 2 {
		t.Errorf("rebuilt: %+v", made)
	}
	for _, p := range made.Pods {
		if len(p.Lost) > 0 {
			t.Errorf("lost of %s: %v", p.Record.Key, p.Lost)
		}
	}
	r.bringUp()
	if host, _ := r.linkOf("c"); nettest.Link(t, host).Attrs().Index != index {
		t.Errorf("the link has not got its name back")
	}
	for _, to := range addresses(res) {
		nettest.Ping(t, other, to)
	}
	r.del("c", true)
	r.wantClean()
}

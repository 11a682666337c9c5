package rtnl_test

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/kernel"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/nettest"
)

func TestAddVeth(t *testing.T) {
	c := open(t, nil)
	got, pod := veth(t, c, "veth0")
	want := rtnl.Link{Index: got.Index, Name: "veth0", MAC: "02:00:00:00:00:01", MTU: 1400, Group: 7, Up: true, Peer: got.Peer, Conf: got.Conf, Veth: true}
	must(t, c.Do(rtnl.NetnsID(pod.Fd(), &want.PeerNetns)))
	if got != want {
		t.Errorf("the host's end is %+v, not %+v", got, want)
	}
	var peer rtnl.Link
	must(t, open(t, pod).Do(rtnl.GetLink("eth0", &peer)))
	want = rtnl.Link{Index: got.Peer, Name: "eth0", MAC: "02:00:00:00:00:01", MTU: 1500, Up: true, Peer: got.Index, Conf: peer.Conf, Veth: true, PeerNetns: peer.PeerNetns}
	if peer != want {
		t.Errorf("the pod's end is %+v, not %+v", peer, want)
	}

	var elsewhere int
	must(t, c.Do(rtnl.NetnsID(nettest.Pod(t).Fd(), &elsewhere)))
	if got.PeerNetns == rtnl.NoNetns || elsewhere == got.PeerNetns {
		t.Errorf("the pod is in %d, and another one is %d", got.PeerNetns, elsewhere)
	}
	var lo rtnl.Link
	must(t, c.Do(rtnl.GetLink("lo", &lo)))
	if lo.Veth || lo.PeerNetns != rtnl.NoNetns {
		t.Errorf("lo is %+v", lo)
	}

	before := nettest.Snapshot(t, nil).Only("link")
	for _, names := range [][2]string{{"veth0", "eth1"}, {"veth1", "eth0"}, {"veth0", "eth0"}} {
		err := c.Do(rtnl.AddVeth(rtnl.End{Name: names[0]}, 0, rtnl.End{Name: names[1]}, pod.Fd()))
		if !errors.Is(err, kernel.ErrExists) {
			t.Errorf("%v: %v", names, err)
		}
	}
	at := got.Index + 1000
	must(t, c.Do(rtnl.AddVeth(rtnl.End{Name: "veth1", Index: at}, 0, rtnl.End{Name: "eth1"}, pod.Fd()), rtnl.GetLink("veth1", &got)))
	if got.Index != at {
		t.Errorf("the index is %d, not %d", got.Index, at)
	}
	err := c.Do(rtnl.AddVeth(rtnl.End{Name: "veth2", Index: at}, 0, rtnl.End{Name: "eth2"}, pod.Fd()))
	if !errors.Is(err, kernel.ErrExists) {
		t.Errorf("an index that is taken: %v", err)
	}
	must(t, c.Do(rtnl.DelLink("veth1")))
	if diff := before.Diff(nettest.Snapshot(t, nil).Only("link")); diff != "" {
		t.Errorf("what failed left\n%s", diff)
	}
}

func TestSetLink(t *testing.T) {
	c := open(t, nil)
	l, pod := veth(t, c, "veth0")
	mac, err := net.ParseMAC("02:00:00:00:00:09")
	must(t, err)
	settings := []rtnl.Setting{rtnl.Alias("a pod's"), rtnl.MTU(1300), rtnl.MAC(mac), rtnl.Group(9), rtnl.NoAddrGen(), rtnl.Down()}
	r := rtnl.SetLink("veth0", settings...)
	if want := "ip link set veth0 alias 'a pod's' mtu 1300 address 02:00:00:00:00:09 group 9 addrgenmode none down"; r.String() != want {
		t.Errorf("the request is %q, not %q", r, want)
	}
	want := rtnl.Link{Index: l.Index, Name: "veth0", Alias: "a pod's", MAC: mac.String(), MTU: 1300, Group: 9, Peer: l.Peer, Veth: true, PeerNetns: l.PeerNetns}
	must(t, c.Do(r, rtnl.GetLink("veth0", &l)))
	want.Conf = l.Conf
	if l != want {
		t.Errorf("the link is %+v, not %+v", l, want)
	}
	must(t, pod.Do(func() error { return ns.SetSysctl("ipv6/conf/eth0/disable_ipv6", "1") }))
	if mode, err := ns.Sysctl("ipv6/conf/veth0/addr_gen_mode"); err != nil || mode != "1" {
		t.Errorf("addr_gen_mode is %q, %v", mode, err)
	}
}

func TestNotThere(t *testing.T) {
	c := open(t, nil)
	var l rtnl.Link
	var n rtnl.Neighbour
	for _, r := range []rtnl.Request{
		rtnl.SetLink("none", rtnl.Up()),
		rtnl.GetLink("none", &l),
		rtnl.DelLink("none"),
		rtnl.DelGroup(12345),
		rtnl.DelRoute(rtnl.Route{Dst: prefix("10.88.0.7/32"), Index: 1}),
		rtnl.DelRoute(rtnl.Route{Dst: prefix("fd88::7/128"), Index: 1}),
		rtnl.GetNeighbour(addr("10.88.0.7"), 1, &n),
		rtnl.GetNeighbour(addr("fd88::7"), 1, &n),
	} {
		if err := c.Do(r); !errors.Is(err, kernel.ErrNotFound) {
			t.Errorf("%v", err)
		}
	}
	if err := c.Regroup(5, rtnl.Link{Index: 12345, Name: "none"})[0]; !errors.Is(err, kernel.ErrNotFound) {
		t.Errorf("Regroup: %v", err)
	}
}

// Regroup works whether or not sysfs shows the links.
func TestRegroup(t *testing.T) {
	node := nettest.Node(t)
	own := open(t, nil)
	veth(t, own, "same0") // a link in another namespace has the same name
	for name, at := range map[string]*ns.Netns{"own namespace": nil, "another": node} {
		t.Run(name, func(t *testing.T) {
			c := open(t, at)
			veth0, _ := veth(t, c, "veth0")
			veth1, _ := veth(t, c, "veth1")
			if at != nil {
				same0, _ := veth(t, c, "same0")
				must(t, c.Regroup(55, same0)[0])
			}
			errs := c.Regroup(55, veth0, rtnl.Link{Index: 12345, Name: "none"}, veth1)
			if errs[0] != nil || !errors.Is(errs[1], kernel.ErrNotFound) || errs[2] != nil {
				t.Errorf("answers %v", errs)
			}
			links, err := c.Veths(named("veth"))
			must(t, err)
			for _, l := range links {
				if l.Group != 55 {
					t.Errorf("%s is in group %d", l.Name, l.Group)
				}
			}
			var same rtnl.Link
			must(t, own.Do(rtnl.GetLink("same0", &same)))
			if same.Group == 55 {
				t.Error("a link of another namespace is in the group")
			}
			must(t, c.Do(rtnl.DelGroup(55)))
			if links, err := c.Veths(named("veth")); err != nil || len(links) > 0 {
				t.Errorf("the group's links are still %v, %v", links, err)
			}
		})
	}
}

// Somebody has exchanged the names of two links, or their names lead to other sysfs files:
// Regroup moves the link that has the index, and no other link.
func TestRegroupByIndex(t *testing.T) {
	c := open(t, nil)
	mine, _ := veth(t, c, "veth0")
	others, _ := veth(t, c, "veth1")
	var lo rtnl.Link
	for _, name := range []string{"veth0", "veth1", "lo", "none", "", ".", "..", "lo/../lo", strings.Repeat("a", 20)} {
		must(t, c.Do(rtnl.SetLinkAt(mine.Index, rtnl.Group(0))))
		must(t, c.Regroup(5, rtnl.Link{Index: mine.Index, Name: name})[0])
		must(t, c.Do(rtnl.GetLinkAt(mine.Index, &mine), rtnl.GetLinkAt(others.Index, &others), rtnl.GetLink("lo", &lo)))
		if mine.Group != 5 || others.Group == 5 || lo.Group == 5 {
			t.Errorf("by the name %q: the link is in group %d, another one in %d, and lo in %d", name, mine.Group, others.Group, lo.Group)
		}
	}
}

// BenchmarkRegroup moves a link that has IPv6 to a group, on a node with 10,000 IPv6 routes.
func BenchmarkRegroup(b *testing.B) {
	c := open(b, nil)
	link, _ := veth(b, c, "veth0")
	must(b, c.Do(rtnl.SetLink("veth0", rtnl.Up())))
	rs := make([]rtnl.Request, 10000)
	for i := range rs {
		rs[i] = rtnl.AddRoute(rtnl.Route{Dst: prefix(fmt.Sprintf("fd99::%x/128", i+1)), Index: link.Index})
	}
	must(b, c.Do(rs...))
	for name, move := range map[string]func(group uint32) error{
		"sysfs":   func(group uint32) error { return c.Regroup(group, link)[0] },
		"netlink": func(group uint32) error { return c.Do(rtnl.SetLinkAt(link.Index, rtnl.Group(group))) },
	} {
		b.Run(name, func(b *testing.B) {
			for i := uint32(1); b.Loop(); i++ {
				must(b, move(i))
			}
		})
	}
}

func TestVeths(t *testing.T) {
	c := open(t, nil)
	a, _ := veth(t, c, "btest0")
	veth(t, c, "other0")
	links, err := c.Veths(named("btest"))
	must(t, err)
	if len(links) != 1 || links[0] != a {
		t.Errorf("the list is %+v, not %+v", links, a)
	}
}

func TestLinks(t *testing.T) {
	c := open(t, nil)
	a, _ := veth(t, c, "btest0")
	veth(t, c, "other0")
	nettest.Run(t, nil, "ip link add btest1 type bridge")
	t.Cleanup(func() { nettest.Run(t, nil, "ip link del btest1") })
	links, err := c.Links(named("btest"))
	must(t, err)
	if len(links) != 2 || links[0] != a || links[1].Name != "btest1" || links[1].Veth {
		t.Errorf("the list is %+v, not %+v and a bridge", links, a)
	}
}

// If a link has no IPv6, setting NoAddrGen fails.
func TestNoAddrGenUnsupported(t *testing.T) {
	c := open(t, nil)
	veth(t, c, "veth0")
	must(t, c.Do(rtnl.SetLink("veth0", rtnl.MTU(1000)))) // below IPv6's least MTU
	err := c.Do(rtnl.SetLink("veth0", rtnl.NoAddrGen()))
	if !errors.Is(err, kernel.ErrUnsupported) || !errors.Is(err, unix.EAFNOSUPPORT) {
		t.Errorf("the error is %v", err)
	}
}

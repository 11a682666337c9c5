package link_test

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/kinds/link"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/stamp"
)

func TestMain(m *testing.M) { nettest.Main(m) }

var must = nettest.Must

const prefix = "test"

// Addresses of the node, on lo.
var (
	node4 = netip.MustParseAddr("192.0.2.1")
	node6 = netip.MustParseAddr("2001:db8::1")
)

// fixture is an agent's links on the test's node.
type fixture struct {
	testing.TB
	conn   *rtnl.Conn
	groups stamp.Groups
	links  *link.Links
	kind   hold.Kind

	exchanged func() // exchange calls it at its end; may be nil
}

// plans counts the holds of all tests, so that each hold has addresses of its own.
var plans atomic.Uint32

func newFixture(t testing.TB, change ...func(*link.Options)) *fixture {
	t.Helper()
	nettest.Need(t)
	conn, err := rtnl.Open(nil)
	must(t, err)
	t.Cleanup(func() { conn.Close() })
	groups, err := stamp.GroupsOf(prefix)
	must(t, err)
	o := link.Options{Conn: conn, Prefix: prefix, Groups: groups}
	for _, f := range change {
		f(&o)
	}
	links := link.New(o)
	return &fixture{TB: t, conn: conn, groups: groups, links: links, kind: links.Kind()}
}

// forwarding makes the test's node a router with addresses of its own.
func (f *fixture) forwarding() {
	f.Helper()
	must(f, ns.SetSysctl("ipv4/ip_forward", "1"))
	must(f, ns.SetSysctl("ipv6/conf/all/forwarding", "1"))
	for _, a := range []netip.Addr{node4, node6} {
		address := rtnl.Address{Prefix: netip.PrefixFrom(a, a.BitLen()), Index: 1}
		if have, err := f.conn.Addresses(1); err != nil || !slices.Contains(have, address) {
			must(f, f.conn.Do(rtnl.AddAddress(address)))
		}
	}
}

// both are the families of a dual-stack pod.
const both = "46"

// hold plans a link for a pod: families is "4", "6" or both.
func (f *fixture) hold(pod ns.Ref, families string) hold.Hold {
	n := plans.Add(1)
	id := hold.NewID()
	s := &link.Spec{
		Name:   stamp.Link(prefix, id),
		Alias:  fmt.Sprintf("berth testaaaaaa %s net/pod-%d/eth0", id, n),
		Netns:  pod,
		Ifname: "eth0",
		MTU:    1400,
	}
	s.MAC, s.HostMAC = link.MACs(id)
	for _, family := range families {
		if family == '4' {
			s.Addresses = append(s.Addresses, netip.AddrFrom4([4]byte{10, 64 | byte(n>>16), byte(n >> 8), byte(n)}))
		} else {
			s.Addresses = append(s.Addresses, netip.MustParseAddr(fmt.Sprintf("fd88::%x", n)))
		}
	}
	return hold.Hold{Owner: id, Spec: s}
}

// pod makes a pod with a link.
func (f *fixture) pod(families string) (*ns.Netns, hold.Hold) {
	f.Helper()
	pod := nettest.Pod(f)
	h := f.hold(pod.Ref(), families)
	f.take(h)
	f.Cleanup(func() { f.release(h) })
	return pod, h
}

// wantRepaired acquires a hold again, and checks that its link still has the index at.
func (f *fixture) wantRepaired(h hold.Hold, at int) {
	f.Helper()
	must(f, f.kind.Acquire(f.Context(), h))
	must(f, f.verify(h))
	if l := f.show(h); l.Index != at {
		f.Errorf("link %d became %d", at, l.Index)
	}
}

// many makes links that share one pod, as eth0, eth1 and so on.
func (f *fixture) many(n int, families string) []hold.Hold {
	f.Helper()
	pod := nettest.Pod(f)
	hs := make([]hold.Hold, n)
	for i := range hs {
		hs[i] = f.hold(pod.Ref(), families)
		spec(hs[i]).Ifname = fmt.Sprintf("eth%d", i)
		f.take(hs[i])
	}
	return hs
}

// take makes a link as an ADD does.
func (f *fixture) take(h hold.Hold) {
	f.Helper()
	must(f, f.kind.Acquire(context.Background(), h))
	must(f, f.kind.Settle(context.Background(), h))
}

func (f *fixture) release(hs ...hold.Hold) {
	f.Helper()
	for _, err := range f.kind.Release(context.Background(), hs) {
		must(f, err)
	}
}

func (f *fixture) verify(h hold.Hold) error {
	return f.kind.Verify(context.Background(), nil, []hold.Hold{h})[0]
}

// show reads a hold's link; the index is 0 if the link does not exist.
func (f *fixture) show(h hold.Hold) rtnl.Link {
	var l rtnl.Link
	if f.conn.Do(rtnl.GetLink(spec(h).Name, &l)) != nil {
		return rtnl.Link{}
	}
	return l
}

// alias returns a name that no link has, for somebody to rename one of Berth's links to.
func (f *fixture) alias() string { return fmt.Sprint("other", plans.Add(1)) }

func prefixOf(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

func spec(h hold.Hold) *link.Spec { return h.Spec.(*link.Spec) }

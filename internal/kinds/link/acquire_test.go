package link_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/kinds/link"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/stamp"
)

// An Acquire that fails leaves the node and the pod as they were, and says why.
func TestAcquireRefuses(t *testing.T) {
	f := newFixture(t)
	self, err := ns.Self()
	must(t, err)
	defer self.Close()
	for _, test := range []struct {
		name string
		bend func(t *testing.T, pod *ns.Netns, h hold.Hold)
		is   error // nil: any
		says string
	}{
		{"pod gone", func(t *testing.T, pod *ns.Netns, _ hold.Hold) { nettest.Delete(t, pod) }, hold.ErrHomeless, "gone"},
		{"another pod at the path", func(_ *testing.T, _ *ns.Netns, h hold.Hold) { spec(h).Netns.ID++ }, hold.ErrHomeless, "not net:["},
		{"the node's own namespace", func(_ *testing.T, _ *ns.Netns, h hold.Hold) { spec(h).Netns = self.Ref() }, nil, "node's own"},
		{"interface name taken", func(t *testing.T, _ *ns.Netns, h hold.Hold) { takenIfname(t, h) }, hold.ErrForeign, "eth0 exists in the pod"},
		{"lo", func(_ *testing.T, _ *ns.Netns, h hold.Hold) { spec(h).Ifname = "lo" }, hold.ErrForeign, "lo exists in the pod"},
		{"no interface name", func(_ *testing.T, _ *ns.Netns, h hold.Hold) { spec(h).Ifname = "" }, nil, "no interface name"},
		{"long interface name", func(_ *testing.T, _ *ns.Netns, h hold.Hold) { spec(h).Ifname = "sixteencharacter" }, nil, "ip link add"},
		{"no MAC", func(_ *testing.T, _ *ns.Netns, h hold.Hold) { spec(h).MAC = "" }, nil, "the pod's MAC"},
		{"MAC in capitals", func(_ *testing.T, _ *ns.Netns, h hold.Hold) { spec(h).HostMAC = "0A:00:00:00:00:01" }, nil, "lower case"},
		{"no address", func(_ *testing.T, _ *ns.Netns, h hold.Hold) { spec(h).Addresses = nil }, nil, "no address"},
		{"IPv4 in IPv6", func(_ *testing.T, _ *ns.Netns, h hold.Hold) {
			spec(h).Addresses = []netip.Addr{netip.MustParseAddr("::ffff:10.88.0.7")}
		}, nil, "plain IPv4 or IPv6"},
		{"address that the pod's end cannot have", func(_ *testing.T, _ *ns.Netns, h hold.Hold) { // such an error inside the pod once ended in a panic
			spec(h).Addresses = []netip.Addr{netip.MustParseAddr("ff05::1")}
		}, nil, "ip addr add ff05::1"},
		{"long alias", func(_ *testing.T, _ *ns.Netns, h hold.Hold) { spec(h).Alias = strings.Repeat("a", 256) }, nil, "256 bytes"},
		{"another owner's name", func(_ *testing.T, _ *ns.Netns, h hold.Hold) { spec(h).Name = "btestabcdefghij" }, nil, "does not belong to"},
		{"route taken", func(t *testing.T, _ *ns.Netns, h hold.Hold) {
			r := rtnl.Route{Dst: netip.PrefixFrom(spec(h).Addresses[0], 32), Index: 1}
			must(t, f.conn.Do(rtnl.AddRoute(r)))
			t.Cleanup(func() { f.conn.Do(rtnl.DelRoute(r)) })
		}, hold.ErrForeign, "ip route add"},
		{"MTU too small for IPv6", func(_ *testing.T, _ *ns.Netns, h hold.Hold) { spec(h).MTU = 1000 }, nil, "disable_ipv6"},
		{"canceled", nil, context.Canceled, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			pod := nettest.Pod(t)
			h := f.hold(pod.Ref(), both)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if test.bend == nil {
				cancel()
			} else {
				test.bend(t, pod, h)
			}
			before := nettest.Snapshot(t, nil)
			inside := f.inside(t, h)
			err := f.kind.Acquire(ctx, h)
			if err == nil || test.is != nil && !errors.Is(err, test.is) || !strings.Contains(err.Error(), test.says) {
				t.Errorf("%v: not %v, saying %q", err, test.is, test.says)
			}
			nettest.Same(t, before, nettest.Snapshot(t, nil), "the node changed")
			if got := f.inside(t, h); got != inside {
				t.Errorf("the pod was\n%s\nand is\n%s", inside, got)
			}
		})
	}
}

// inside returns the interfaces of a hold's pod except lo, which may have come up before Acquire
// failed. The result is empty if inside cannot open the pod.
func (f *fixture) inside(t *testing.T, h hold.Hold) string {
	pod, err := spec(h).Netns.Open()
	if err != nil {
		return ""
	}
	defer pod.Close()
	links := strings.Split(nettest.Snapshot(t, pod).Only("link").String(), "\n")
	return strings.Join(slices.DeleteFunc(links, func(l string) bool { return strings.HasPrefix(l, "link lo ") }), "\n")
}

// Acquire makes a link anew if somebody has killed its ADD half-way, at whatever step.
func TestAcquireAnew(t *testing.T) {
	exposed := 0
	f := newFixture(t, func(o *link.Options) { o.Exposed = func() { exposed++ } })
	f.forwarding()
	pod, h := f.pod(both)
	old := f.show(h).Peer
	if exposed != 0 {
		t.Error("a new link exposes something")
	}
	must(t, f.conn.Do(rtnl.SetLink(spec(h).Name, rtnl.Group(f.groups.Coming()))))
	if err := f.verify(h); !errors.Is(err, hold.ErrChanged) || !strings.Contains(err.Error(), "half-made") {
		t.Errorf("Verify says %v", err)
	}
	must(t, f.kind.Acquire(t.Context(), h))
	if f.show(h).Peer == old {
		t.Error("the link is still the old one")
	}
	if exposed == 0 {
		t.Error("nobody is told of a link that was up, and not live")
	}
	must(t, f.verify(h))
	must(t, f.links.VerifyPod(t.Context(), h))
	nettest.Ping(t, pod, node4)
}

// Acquire brings a link back that is cut off although its owner is wanted, whoever has cut it off.
func TestAcquireRevives(t *testing.T) {
	f := newFixture(t)
	f.forwarding()
	_, last := f.groups.Dying()
	regroup := func(group uint32) func(h hold.Hold) {
		return func(h hold.Hold) { must(t, f.conn.Do(rtnl.SetLink(spec(h).Name, rtnl.Group(group)))) }
	}
	for name, cut := range map[string]func(h hold.Hold){
		"cut group":       regroup(f.groups.Cut()),
		"a batch's group": regroup(f.groups.Batch(0)),
		"last group":      regroup(last),
		"by this agent":   func(h hold.Hold) { must(t, f.kind.Cut(t.Context(), h)) },
		"severed": func(h hold.Hold) {
			must(t, f.kind.Cut(t.Context(), h))
			must(t, f.kind.Sever(t.Context(), []hold.Hold{h}))
		},
	} {
		pod, h := f.pod(both)
		at := f.show(h).Index
		cut(h)
		f.wantRepaired(h, at)
		nettest.Ping(t, pod, node4)
		must(t, f.links.DownDying(t.Context()))
		if err := f.verify(h); err != nil {
			t.Errorf("%s: after the table has changed: %v", name, err)
		}
	}
}

// An Acquire whose context has ended does not bring back a link that is cut off: the engine ends the
// context before it cuts an owner off.
func TestAcquireNeverUncuts(t *testing.T) {
	f := newFixture(t)
	_, h := f.pod(both)
	must(t, f.kind.Cut(t.Context(), h))
	was := f.show(h)
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if err := f.kind.Acquire(over, h); !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "cut off") {
		t.Errorf("Acquire says %v", err)
	}
	if now := f.show(h); now != was {
		t.Errorf("the link was %+v and is %+v", was, now)
	}
}

// A cut comes while Acquire brings the link back: whether Cut or Acquire is first, the link is cut off
// in the end.
func TestCutWinsOverRevival(t *testing.T) {
	f := newFixture(t)
	_, h := f.pod("4")
	for range 50 {
		must(t, f.kind.Cut(t.Context(), h))
		ctx, cancel := context.WithCancel(t.Context())
		begun, ended := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(ended)
			close(begun)
			_ = f.kind.Acquire(ctx, h) // Acquire may or may not be in time
		}()
		<-begun
		cancel() // as the engine does; but the engine also waits for Acquire
		must(t, f.kind.Cut(t.Context(), h))
		<-ended
		if l := f.show(h); l.Group != f.groups.Cut() {
			t.Fatalf("the link is %+v", l)
		}
	}
}

// A pod deletes its end of the link. Then the pod keeps giving that end's name to another interface and
// taking the name away, while the agent makes the link again. The new link has the index of the old
// one, because the table counts the pod's connections by that index.
func TestIndexOutlivesDecoy(t *testing.T) {
	f := newFixture(t) // f hears no news: an agent may make the link anew before it hears that the old link is gone
	pod, h := f.pod("4")
	inside, err := rtnl.Open(pod)
	must(t, err)
	defer inside.Close()
	var decoy rtnl.Link
	must(t, inside.Do(rtnl.AddVeth(rtnl.End{Name: "decoy"}, 0, rtnl.End{Name: "other"}, pod.Fd()), rtnl.GetLink("decoy", &decoy)))
	index, refused := f.show(h).Index, 0
	for range 30 {
		must(t, f.conn.Do(rtnl.DelLinkAt(index)), inside.Do(rtnl.Rename(decoy.Index, "eth0")))
		if err := f.kind.Acquire(t.Context(), h); !errors.Is(err, hold.ErrForeign) {
			t.Fatalf("the decoy is in the way, and Acquire says %v", err)
		}
		refused++
		made := make(chan struct{})
		go func() {
			defer close(made)
			for err := error(nil); err == nil; err = inside.Do(rtnl.Rename(decoy.Index, "eth0")) { // until the agent has made the link
				if err := inside.Do(rtnl.Rename(decoy.Index, "decoy")); err != nil {
					t.Error(err)
				}
			}
		}()
		err := f.kind.Acquire(t.Context(), h)
		for ; errors.Is(err, hold.ErrForeign); err = f.kind.Acquire(t.Context(), h) {
			refused++
		}
		must(t, err)
		<-made
		if now := f.show(h).Index; now != index {
			t.Fatalf("link %d became %d, after %d refusals", index, now, refused)
		}
	}
}

// A repair puts right what changed on the host, and leaves the pod alone. The repair calls Exposed if
// the link was out of the live group or a port of another link.
func TestRepair(t *testing.T) {
	exposed := 0
	f := newFixture(t, func(o *link.Options) { o.Exposed = func() { exposed++ } })
	f.forwarding()
	nettest.Run(t, nil, "ip link add a-bridge address 02:00:00:00:00:0b type bridge")
	t.Cleanup(func() { nettest.Run(t, nil, "ip link del a-bridge") })
	bridge := nettest.Link(t, "a-bridge")
	for _, test := range []struct {
		name, says string
		drift      func(link netlink.Link, h hold.Hold) error
	}{
		{"IPv4 route deleted", "no route to 10.", func(l netlink.Link, h hold.Hold) error {
			return f.conn.Do(rtnl.DelRoute(rtnl.Route{Dst: netip.PrefixFrom(spec(h).Addresses[0], 32), Index: l.Attrs().Index}))
		}},
		{"IPv6 route deleted", "no route to fd88", func(l netlink.Link, h hold.Hold) error {
			return f.conn.Do(rtnl.DelRoute(rtnl.Route{Dst: netip.PrefixFrom(spec(h).Addresses[1], 128), Index: l.Attrs().Index}))
		}},
		{"down", "down; no route to 10.", func(l netlink.Link, _ hold.Hold) error { return netlink.LinkSetDown(l) }},
		{"alias", `alias "mine", not "berth testaaaaaa`, func(l netlink.Link, _ hold.Hold) error { return netlink.LinkSetAlias(l, "mine") }},
		{"MTU", "mtu 1300, not 1400", func(l netlink.Link, _ hold.Hold) error { return netlink.LinkSetMTU(l, 1300) }},
		{"MTU too small for IPv6", "mtu 1000, not 1400; no route to fd88", func(l netlink.Link, _ hold.Hold) error { return netlink.LinkSetMTU(l, 1000) }},
		{"IPv6 ended and back", "no route to fd88", func(l netlink.Link, _ hold.Hold) error {
			return errors.Join(netlink.LinkSetMTU(l, 1000), netlink.LinkSetMTU(l, 1400))
		}},
		{"port of a bridge", "attached to link ", func(l netlink.Link, _ hold.Hold) error { return netlink.LinkSetMaster(l, bridge) }},
		{"MAC", "address 02:00:00:00:00:01, not", func(l netlink.Link, _ hold.Hold) error {
			return netlink.LinkSetHardwareAddr(l, []byte{2, 0, 0, 0, 0, 1})
		}},
		{"group", "group 0, not", func(l netlink.Link, _ hold.Hold) error { return netlink.LinkSetGroup(l, 0) }},
		{"answers ARP", "arp_ignore 0, not 8", hostSysctl("ipv4", "arp_ignore", "0")},
		{"believes announcements", "arp_accept 1, not 0", hostSysctl("ipv4", "arp_accept", "1")},
		{"believes announcements of IPv6", "accept_untracked_na 1, not 0", hostSysctl("ipv6", "accept_untracked_na", "1")},
		{"takes source routes", "accept_source_route 1, not 0", hostSysctl("ipv4", "accept_source_route", "1")},
		{"hears router advertisements", "accept_ra 2, not 0", hostSysctl("ipv6", "accept_ra", "2")},
		{"IPv6 off", "disable_ipv6 1, not 0; no route to fd88", hostSysctl("ipv6", "disable_ipv6", "1")},
		{"neighbour", "neighbour 10.", func(l netlink.Link, h hold.Hold) error {
			return netlink.NeighSet(&netlink.Neigh{
				LinkIndex: l.Attrs().Index, State: netlink.NUD_PERMANENT,
				IP: spec(h).Addresses[0].AsSlice(), HardwareAddr: []byte{2, 0, 0, 0, 0, 1},
			})
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			f := *f
			f.TB = t
			pod, h := f.pod(both)
			_, other := f.pod(both)
			f.show(h) // brings the link's carrier, and with it a route for multicast, up to date
			f.show(other)
			before, inside := nettest.Snapshot(t, nil), nettest.Snapshot(t, pod)
			l := nettest.Link(t, spec(h).Name)
			must(t, test.drift(l, h))
			for _, hs := range [][]hold.Hold{{h}, {other, h}} {
				errs := f.kind.Verify(t.Context(), nil, hs)
				if err := errs[len(hs)-1]; !errors.Is(err, hold.ErrChanged) || !strings.Contains(err.Error(), test.says) {
					t.Errorf("Verify of %d says %v, without %q", len(hs), err, test.says)
				}
				if len(hs) > 1 && errs[0] != nil {
					t.Errorf("Verify says %v of another link", errs[0])
				}
			}
			exposed = 0
			must(t, f.kind.Acquire(t.Context(), h))
			must(t, f.verify(h))
			if exposes := test.name == "group" || test.name == "port of a bridge"; exposes != (exposed > 0) {
				t.Errorf("told %d times of what began by a link that no rule was for", exposed)
			}
			f.show(h)
			nettest.Same(t, before, nettest.Snapshot(t, nil), "the node changed")
			nettest.Same(t, inside, nettest.Snapshot(t, pod), "the pod changed")
			for _, a := range spec(h).Addresses {
				nettest.Ping(t, nil, a)
			}
		})
	}
}

// hostSysctl sets a sysctl of a link's host end.
func hostSysctl(family, name, value string) func(netlink.Link, hold.Hold) error {
	return func(l netlink.Link, _ hold.Hold) error {
		return ns.SetSysctl(family+"/conf/"+l.Attrs().Name+"/"+name, value)
	}
}

// A policy rule that sends packets elsewhere does not hide the host's routes.
func TestVerifyBehindRule(t *testing.T) {
	f := newFixture(t)
	_, h := f.pod(both)
	for i, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		a := spec(h).Addresses[i]
		dst := &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}
		must(t, netlink.RouteAdd(&netlink.Route{Dst: dst, Type: unix.RTN_BLACKHOLE, Table: 77}))
		rule := netlink.NewRule()
		rule.Family, rule.Dst, rule.Table, rule.Priority = family, dst, 77, 100
		must(t, netlink.RuleAdd(rule))
		defer netlink.RuleDel(rule)
	}
	must(t, f.verify(h))
}

// Acquire repairs a link even if its pod's namespace is not at its path any more.
func TestRepairUnseen(t *testing.T) {
	f := newFixture(t)
	pod, h := f.pod("4")
	l := nettest.Link(t, spec(h).Name)
	must(t, netlink.LinkSetDown(l))
	// A socket keeps the pod's namespace alive.
	var inside *rtnl.Conn
	must(t, pod.Do(func() (err error) { inside, err = rtnl.Here(); return err }))
	defer inside.Close()
	nettest.Delete(t, pod)
	must(t, f.kind.Acquire(t.Context(), h))
	must(t, f.verify(h))
}

// Many Acquires at once succeed.
func TestAcquireAtOnce(t *testing.T) {
	f := newFixture(t)
	f.forwarding()
	const n = 50
	hs := make([]hold.Hold, n)
	for i := range hs {
		hs[i] = f.hold(nettest.Pod(t).Ref(), both)
	}
	var all sync.WaitGroup
	for _, h := range hs {
		all.Go(func() {
			if err := errors.Join(f.kind.Acquire(t.Context(), h), f.kind.Settle(t.Context(), h)); err != nil {
				t.Error(err)
			}
			f.receives(h)
		})
	}
	all.Wait()
	for i, err := range f.kind.Verify(t.Context(), nil, hs) {
		if err != nil {
			t.Error(err)
		}
		if err := f.links.VerifyPod(t.Context(), hs[i]); err != nil {
			t.Error(err)
		}
	}
	for _, h := range hs {
		all.Go(func() {
			if err := f.kind.Release(context.Background(), []hold.Hold{h})[0]; err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
}

// receives checks that the pod of a hold receives packets to its addresses. A pod does so a little
// after the kernel has added the addresses.
func (f *fixture) receives(h hold.Hold) {
	pod, err := spec(h).Netns.Open()
	if err != nil {
		f.Error(err)
		return
	}
	defer pod.Close()
	c, err := rtnl.Open(pod)
	if err != nil {
		f.Error(err)
		return
	}
	defer c.Close()
	for _, a := range spec(h).Addresses {
		local := false
		if err := c.Do(rtnl.IsLocal(a, &local)); err != nil || !local {
			f.Errorf("%s is local to its pod: %t, %v", a, local, err)
		}
	}
}

// A plugin that gets no answer queues a deletion, and then looks for the pod's link. So before a new
// link comes up, and when the plugin can already recognize the link, Acquire asks whether a deletion
// waits. If one waits, or if nobody can tell, the link goes without having been up.
func TestNewLinkOfADeletionThatWaits(t *testing.T) {
	for name, answer := range map[string]error{"waits": nil, "nobody can tell": errors.New("too many open files")} {
		t.Run(name, func(t *testing.T) {
			var f *fixture
			asked := 0
			f = newFixture(t, func(o *link.Options) {
				o.Going = func(id hold.ID) (bool, error) {
					asked++
					var now rtnl.Link
					must(t, f.conn.Do(rtnl.GetLink(stamp.Link(prefix, id), &now)))
					if s, _ := stamp.Parse(now.Alias); s.ID != id || now.Up || now.Group != f.groups.Coming() {
						t.Errorf("asked when the link is %+v", now)
					}
					return answer == nil, answer
				}
			})
			h := f.hold(nettest.Pod(t).Ref(), both)
			err := f.kind.Acquire(t.Context(), h)
			if !errors.Is(err, hold.ErrGoing) || !errors.Is(err, hold.ErrUnused) || answer != nil && !errors.Is(err, answer) {
				t.Errorf("Acquire: %v", err)
			}
			if asked != 1 {
				t.Errorf("Acquire has asked %d times", asked)
			}
			if err := f.conn.Do(rtnl.GetLink(spec(h).Name, new(rtnl.Link))); !errors.Is(err, kernel.ErrNotFound) {
				t.Errorf("the link is still there: %v", err)
			}
		})
	}
}

// A pod deletes its interface while Acquire makes the link. The host's end never came up, so that nobody has
// used the pod's addresses.
func TestNewLinkThatThePodDeletes(t *testing.T) {
	pod := nettest.Pod(t)
	f := newFixture(t, func(o *link.Options) {
		o.Going = func(hold.ID) (bool, error) { nettest.Run(t, pod, "ip link del eth0"); return false, nil }
	})
	h := f.hold(pod.Ref(), both)
	if err := f.kind.Acquire(t.Context(), h); !errors.Is(err, hold.ErrUnused) {
		t.Errorf("Acquire: %v", err)
	}
}

package link_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/stamp"
)

// exchange gives each of the holds' links the name of the next one's.
func (f *fixture) exchange(hs ...hold.Hold) {
	f.Helper()
	links := make([]rtnl.Link, len(hs))
	for i, h := range hs {
		links[i] = f.show(h)
		must(f, f.conn.Do(rtnl.Rename(links[i].Index, f.alias())))
	}
	for i, l := range links {
		must(f, f.conn.Do(rtnl.Rename(l.Index, links[(i+1)%len(hs)].Name)))
	}
	if f.exchanged != nil {
		f.exchanged()
	}
}

// Somebody exchanges the names of two pods' links after the agent has looked at one of them:
// the agent changes that link, and the other pod's stays as it was.
func TestExchangedBetween(t *testing.T) {
	for name, change := range map[string]func(f *fixture, h, other hold.Hold){
		"cut": func(f *fixture, h, other hold.Hold) {
			seen := f.show(h)
			f.exchange(h, other)
			must(f, f.links.CutOff(spec(h), seen))
			if l := f.at(seen.Index); l.Group != f.groups.Cut() {
				f.Errorf("the link is not cut off: %+v", l)
			}
		},
		"release": func(f *fixture, h, other hold.Hold) {
			_, with := f.pod("4")
			at := []int{f.show(h).Index, f.show(with).Index}
			for _, err := range f.links.DeleteAll(func() { f.exchange(h, other) }, spec(h), spec(with)) {
				must(f, err)
			}
			for _, i := range at {
				if l := f.at(i); l.Index != 0 {
					f.Errorf("the link is not deleted: %+v", l)
				}
			}
		},
		"restamp": func(f *fixture, h, other hold.Hold) {
			seen := f.show(h)
			f.exchange(h, other)
			must(f, f.links.Restamp(spec(h), 77))
			of, _ := stamp.Parse(seen.Alias)
			if l := f.at(seen.Index); l.Alias != of.Since(77) {
				f.Errorf("the link does not name the ADD: %+v", l)
			}
		},
		"repair": func(f *fixture, h, other hold.Hold) {
			must(f, ns.SetSysctl("ipv4/conf/"+spec(other).Name+"/arp_accept", "1")) // a repair of the other link would change this sysctl
			must(f, f.conn.Do(rtnl.SetLink(spec(h).Name, rtnl.MAC(another), rtnl.Group(0), rtnl.Alias("somebody's"), rtnl.Down()),
				rtnl.SetLink(spec(other).Name, rtnl.MTU(1350), rtnl.Down())))
			seen := f.show(h)
			f.exchange(h, other)
			must(f, f.links.Furnish(spec(h), seen))
			want := seen
			want.Name, want.Alias, want.MAC, want.Group, want.Up = spec(other).Name, spec(h).Alias, spec(h).HostMAC, f.groups.Live(), true
			if l := f.at(seen.Index); l != want {
				f.Errorf("the link is %+v, not %+v", l, want)
			}
		},
		"repair of the MTU": func(f *fixture, h, other hold.Hold) {
			must(f, f.conn.Do(rtnl.SetLink(spec(h).Name, rtnl.MTU(1300)), rtnl.SetLink(spec(other).Name, rtnl.MTU(1350))))
			seen := f.show(h)
			f.exchange(h, other)
			if err := f.links.Furnish(spec(h), seen); err == nil || !strings.Contains(err.Error(), "renamed") { // Furnish needs the name for the sysctls, which an MTU may end
				f.Errorf("the repair says %v", err)
			}
			if l := f.at(seen.Index); l.MTU != spec(h).MTU {
				f.Errorf("the link is %+v", l)
			}
		},
		"repair of sysctls": func(f *fixture, h, other hold.Hold) {
			for _, h := range []hold.Hold{h, other} {
				must(f, ns.SetSysctl("ipv4/conf/"+spec(h).Name+"/arp_accept", "1"))
			}
			seen := f.show(h)
			f.exchange(h, other)
			if err := f.links.Furnish(spec(h), seen); err == nil || !strings.Contains(err.Error(), "renamed") {
				f.Errorf("the repair says %v", err)
			}
		},
		"renewal of IPv6": func(f *fixture, h, other hold.Hold) {
			must(f, ns.SetSysctl("ipv6/conf/"+spec(h).Name+"/disable_ipv6", "1"))
			seen := f.show(h)
			f.exchange(h, other)
			if err := f.links.Furnish(spec(h), seen); err == nil || !strings.Contains(err.Error(), "renamed") {
				f.Errorf("the repair says %v", err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.forwarding()
			_, h := f.pod(both)
			_, other := f.pod(both)
			at := f.show(other).Index
			routes := func() []rtnl.Route {
				all, err := f.conn.Routes(rtnl.RouteFilter{Index: at})
				must(t, err)
				return all
			}
			var was rtnl.Link
			var ways []rtnl.Route
			f.exchanged = func() { was, ways = f.at(at), routes() }
			change(f, h, other)
			if now := f.at(at); now != was {
				t.Errorf("the other pod's link was %+v and is %+v", was, now)
			}
			if now := routes(); !slices.Equal(now, ways) {
				t.Errorf("the other pod's routes were %v and are %v", ways, now)
			}
		})
	}
}

// Somebody has exchanged the names of pods' links: each link gets its own name back, whichever link
// Acquire repairs first, even if the agent has not seen the links. Somebody else's link keeps its name.
func TestExchangedAreMended(t *testing.T) {
	for name, unseen := range map[string]bool{"seen": false, "unseen so far": true} {
		for _, n := range []int{2, 3} {
			t.Run(fmt.Sprintf("%d links, %s", n, name), func(t *testing.T) {
				f := newFixture(t)
				f.forwarding()
				var hs []hold.Hold
				var at []int
				for range n {
					pod, h := f.pod("4")
					f.hide(pod, h, hide{index: unseen})
					hs, at = append(hs, h), append(at, f.show(h).Index)
				}
				f.exchange(hs...)
				for i, h := range hs {
					f.wantRepaired(h, at[i])
				}
				for _, h := range hs {
					must(t, f.verify(h))
				}
			})
		}
	}
}

// An agent ends between the two renames of a repair: the next agent finds, releases and mends the links
// like any other renamed link.
func TestExchangedHalfMended(t *testing.T) {
	f := newFixture(t)
	f.forwarding()
	pod, h := f.pod("4")
	_, other := f.pod("4")
	at, otherAt := f.show(h).Index, f.show(other).Index
	f.exchange(h, other)
	must(t, f.kind.Acquire(t.Context(), h)) // now the other pod's link has neither of the two names
	left := f.at(otherAt)
	f.hide(pod, h, hide{index: true})
	found, err := f.kind.Find(t.Context(), nil)
	must(t, err)
	if left.Name == spec(h).Name || left.Name == spec(other).Name || !slices.ContainsFunc(found, func(x hold.Hold) bool { return x.Owner == other.Owner }) {
		t.Errorf("%+v is left, and found is %v", left, found)
	}
	f.wantRepaired(other, otherAt)
	f.wantRepaired(h, at)
}

// A stranger's link has the name of Berth's link: Acquire does not take the name away from the
// stranger's link.
func TestStrangerKeepsOurName(t *testing.T) {
	f := newFixture(t)
	_, h := f.pod("4")
	at := f.rename(h)
	var stranger, now rtnl.Link
	must(t, f.conn.Do(rtnl.AddVeth(rtnl.End{Name: spec(h).Name}, 0, rtnl.End{Name: "peer0"}, nettest.Pod(t).Fd()),
		rtnl.GetLink(spec(h).Name, &stranger)))
	if err := f.kind.Acquire(t.Context(), h); err == nil {
		t.Error("Acquire succeeds, and a stranger has the link's name")
	}
	must(t, f.conn.Do(rtnl.GetLinkAt(stranger.Index, &now), rtnl.DelLinkAt(stranger.Index)))
	if now != stranger {
		t.Errorf("the stranger's link was %+v and is %+v", stranger, now)
	}
	f.wantRepaired(h, at)
}

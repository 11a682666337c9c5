package link_test

import (
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/kinds/link"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/stamp"
)

// rename gives a hold's link another name, and returns its index.
func (f *fixture) rename(h hold.Hold) int {
	f.Helper()
	l := f.show(h)
	must(f, f.conn.Do(rtnl.Rename(l.Index, f.alias())))
	return l.Index
}

// at reads the link that has an index; the result's index is 0 if there is no such link.
func (f *fixture) at(index int) rtnl.Link {
	var l rtnl.Link
	if f.conn.Do(rtnl.GetLinkAt(index, &l)) != nil {
		return rtnl.Link{}
	}
	return l
}

// hide says which of the ways that lead to a hold's link, besides its name, a test removes.
type hide struct{ second, index, routes, end bool }

func (f *fixture) hide(pod *ns.Netns, h hold.Hold, what hide) {
	f.Helper()
	l := nettest.Link(f, spec(h).Name)
	if what.second {
		must(f, netlink.LinkDelAltName(l, stamp.AltName(spec(h).Name)))
	}
	if what.index { // as an agent that has just started
		f.links = link.New(link.Options{Conn: f.conn, Prefix: prefix, Groups: f.groups})
		f.kind = f.links.Kind()
	}
	if what.routes {
		for _, a := range spec(h).Addresses {
			must(f, f.conn.Do(rtnl.DelRoute(rtnl.Route{Dst: prefixOf(a), Index: l.Attrs().Index})))
		}
	}
	if what.end {
		elsewhere := nettest.Pod(f)
		must(f, pod.Do(func() error {
			eth0 := nettest.Link(f, spec(h).Ifname)
			return netlink.LinkSetNsFd(eth0, elsewhere.Fd())
		}))
	}
}

// Cut and Release find a link that somebody has renamed all the same, whichever way still leads to the
// link.
func TestRenamed(t *testing.T) {
	for name, hidden := range map[string]hide{
		"nothing else":     {},
		"second name left": {index: true, routes: true, end: true},
		"index left":       {second: true, routes: true, end: true},
		"routes left":      {second: true, index: true, end: true},
		"pod's end left":   {second: true, index: true, routes: true},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.forwarding()
			cutPod, cut := f.pod(both)
			pod, h := f.pod(both)
			_, other := f.pod(both)
			for p, h := range map[*ns.Netns]hold.Hold{cutPod: cut, pod: h} {
				f.hide(p, h, hidden)
			}
			cutAt, at := f.rename(cut), f.rename(h)

			must(t, f.kind.Cut(t.Context(), cut))
			if l := f.at(cutAt); l.Group != f.groups.Cut() {
				t.Errorf("the link that is cut off is %+v", l)
			}
			if routes, err := f.conn.Routes(rtnl.RouteFilter{Index: cutAt}); err != nil || len(routes) > 0 {
				t.Errorf("the way to the pod is %v, %v", routes, err)
			}
			if err := f.verify(h); !errors.Is(err, hold.ErrChanged) || !strings.Contains(err.Error(), "renamed to other") {
				t.Errorf("Verify says %v", err)
			}
			f.release(cut, h)
			for _, i := range []int{cutAt, at} {
				if l := f.at(i); l.Index != 0 {
					t.Errorf("what is released is there: %+v", l)
				}
			}
			must(t, f.verify(other))
		})
	}
}

// A repair gives a renamed link its name back, whatever the pod has done to its end.
func TestRenamedIsRepaired(t *testing.T) {
	for name, hidden := range map[string]hide{
		"nothing else":   {},
		"pod's end away": {end: true},
		"unseen so far":  {end: true, index: true},
		"no second name": {end: true, index: true, second: true},
		"index left":     {end: true, routes: true, second: true},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.forwarding()
			pod, h := f.pod(both)
			f.hide(pod, h, hidden)
			at := f.rename(h)
			f.wantRepaired(h, at)
		})
	}
}

// If somebody else's link has the name of a renamed link by now, Acquire repairs the renamed link under
// its new name, and the error says why. The link gets its own name back as soon as the name is free.
func TestRenamedBesideItsName(t *testing.T) {
	for name, take := range map[string]func(*fixture, string){
		"another link": func(f *fixture, name string) {
			must(f, f.conn.Do(rtnl.AddVeth(rtnl.End{Name: name}, 0, rtnl.End{Name: f.alias()}, nettest.Pod(f).Fd())))
		},
		"lo's second name": func(f *fixture, name string) {
			nettest.Run(f, nil, "ip link property add dev lo altname "+name)
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.forwarding()
			_, h := f.pod(both)
			at := f.rename(h)
			take(f, spec(h).Name)
			must(t, f.conn.Do(rtnl.SetLinkAt(at, rtnl.Down(), rtnl.MTU(1300))))
			if err := f.kind.Acquire(t.Context(), h); !errors.Is(err, hold.ErrForeign) {
				t.Fatalf("Acquire says %v", err)
			}
			if err := f.verify(h); !errors.Is(err, hold.ErrChanged) || strings.Contains(err.Error(), ";") ||
				!strings.Contains(err.Error(), "renamed to other") {
				t.Errorf("but for its name the link is repaired, and Verify says %v", err)
			}
			if name == "another link" {
				must(t, f.conn.Do(rtnl.DelLink(spec(h).Name)))
			} else {
				nettest.Run(t, nil, "ip link property del dev lo altname "+spec(h).Name)
			}
			f.wantRepaired(h, at)
		})
	}
}

// Acquire also repairs such a link if the pod's network namespace is not at its path any more.
func TestRenamedBesideItsNameWithoutPath(t *testing.T) {
	f := newFixture(t)
	f.forwarding()
	_, h := f.pod(both)
	at := f.rename(h)
	must(t, f.conn.Do(rtnl.AddVeth(rtnl.End{Name: spec(h).Name}, 0, rtnl.End{Name: f.alias()}, nettest.Pod(f).Fd()),
		rtnl.SetLinkAt(at, rtnl.Down())))
	spec(h).Netns.ID++
	if err := f.kind.Acquire(t.Context(), h); !errors.Is(err, kernel.ErrExists) {
		t.Fatalf("Acquire says %v", err)
	}
	if err := f.verify(h); !errors.Is(err, hold.ErrChanged) || strings.Contains(err.Error(), ";") {
		t.Errorf("but for its name the link is repaired, and Verify says %v", err)
	}
	must(t, f.conn.Do(rtnl.DelLink(spec(h).Name)))
	f.wantRepaired(h, at)
}

// Cut and Release leave a link alone that has another owner's alias, whatever leads to it.
// They also leave a link alone that somebody gave the name of a link that is gone.
func TestRenamedToOurs(t *testing.T) {
	f := newFixture(t)
	f.forwarding()
	_, h := f.pod("4")
	_, other := f.pod("4")
	name, index := spec(h).Name, f.show(h).Index
	stranger := f.show(other)
	must(t, f.conn.Do(rtnl.DelLinkAt(index), rtnl.Rename(stranger.Index, name)))
	if err := f.kind.Acquire(t.Context(), h); !errors.Is(err, hold.ErrForeign) {
		t.Errorf("Acquire says %v", err)
	}
	must(t, f.kind.Cut(t.Context(), h))
	f.release(h)
	f.release(h, f.hold(ns.Ref{}, "4"))
	stranger.Name = name
	if now := f.at(stranger.Index); now != stranger {
		t.Errorf("another's link was %+v and is %+v", stranger, now)
	}
	if err := f.verify(h); !errors.Is(err, hold.ErrGone) {
		t.Errorf("Verify says %v", err)
	}
	must(t, f.kind.Acquire(t.Context(), other)) // the link gets its own name back
	must(t, f.verify(other))
}

// A half-made link has its alias already: if somebody renames the link, the agent still finds it.
func TestRenamedComing(t *testing.T) {
	f := newFixture(t)
	_, h := f.pod("4")
	must(t, f.conn.Do(rtnl.SetLink(spec(h).Name, rtnl.Group(f.groups.Coming()))))
	half := f.show(h)
	f.rename(h)
	must(t, f.kind.Acquire(t.Context(), h))
	must(t, f.verify(h))
	if l := f.at(half.Index); l.Peer == half.Peer {
		t.Errorf("what was half-made is left: %+v", l)
	}
}

// Release deletes all links, even if somebody moves them to other groups at any moment.
func TestReleaseRegrouped(t *testing.T) {
	f := newFixture(t)
	var mu sync.Mutex
	var indices []int
	stop := nettest.Again(func() {
		mu.Lock()
		defer mu.Unlock()
		for _, i := range indices {
			f.conn.Do(rtnl.SetLinkAt(i, rtnl.Group(0)))
		}
	})
	defer stop()
	for range 5 {
		hs := f.many(8, "4")
		mu.Lock()
		indices = indices[:0]
		for _, h := range hs {
			indices = append(indices, f.show(h).Index)
		}
		mu.Unlock()
		f.release(hs...)
		for _, h := range hs {
			var l rtnl.Link
			if err := f.conn.Do(rtnl.GetLink(spec(h).Name, &l)); !errors.Is(err, kernel.ErrNotFound) {
				t.Errorf("what is released is there: %+v, %v", l, err)
				f.release(h)
			}
		}
	}
}

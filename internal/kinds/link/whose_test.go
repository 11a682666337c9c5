package link_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/kinds/link"
	"github.com/berth-net/berth/internal/nettest"
)

// strip gives a hold's link another name and another alias, and hides the other ways to the link that
// the parameter what names. It returns the link's index.
func (f *fixture) strip(pod *ns.Netns, h hold.Hold, alias string, what hide, settings ...rtnl.Setting) int {
	f.Helper()
	f.hide(pod, h, what)
	index := f.rename(h)
	must(f, f.conn.Do(rtnl.SetLinkAt(index, append(settings, rtnl.Alias(alias))...)))
	return index
}

// another is a MAC that no owner's link has.
var another = net.HardwareAddr{2, 0, 0, 0, 0, 9}

// strips are links that have lost their name and alias, by what they still have of their
// owner.
var strips = map[string]struct {
	hide
	settings []rtnl.Setting
	ours     bool
}{
	"all else":               {ours: true},
	"after a restart":        {hide: hide{index: true}, ours: true},
	"second name and group":  {hide{index: true, routes: true, end: true}, []rtnl.Setting{rtnl.MAC(another)}, true},
	"second name and MAC":    {hide{index: true, routes: true, end: true}, []rtnl.Setting{rtnl.Group(0)}, true},
	"second name and routes": {hide{index: true, end: true}, []rtnl.Setting{rtnl.MAC(another), rtnl.Group(0)}, true},
	"index and group":        {hide{second: true, routes: true, end: true}, []rtnl.Setting{rtnl.MAC(another)}, true},
	"group and MAC":          {hide{second: true, routes: true, end: true, index: true}, nil, true},
	"routes and MAC":         {hide{second: true, index: true, end: true}, []rtnl.Setting{rtnl.Group(0)}, true},
	"MAC and the pod's end":  {hide{second: true, index: true, routes: true}, []rtnl.Setting{rtnl.Group(0)}, false},
	"second name":            {hide{index: true, routes: true}, []rtnl.Setting{rtnl.MAC(another), rtnl.Group(0)}, false},
	"index":                  {hide{second: true, routes: true}, []rtnl.Setting{rtnl.MAC(another), rtnl.Group(0)}, false},
	"MAC alone":              {hide{second: true, index: true, routes: true, end: true}, []rtnl.Setting{rtnl.Group(0)}, false},
	"second name alone":      {hide{index: true, routes: true, end: true}, []rtnl.Setting{rtnl.MAC(another), rtnl.Group(0)}, false},
	"routes alone":           {hide{second: true, index: true, end: true}, []rtnl.Setting{rtnl.MAC(another), rtnl.Group(0)}, false},
	"the pod's end":          {hide{second: true, index: true, routes: true}, []rtnl.Setting{rtnl.MAC(another), rtnl.Group(0)}, false},
}

// A link whose alias is not one of Berth's is its owner's if two other things show that, whatever its
// name is: Cut and Release find the link. If fewer things do, Cut and Release leave the link alone, and
// return an error instead of saying that the link is gone.
func TestStripped(t *testing.T) {
	for name, left := range strips {
		for _, alias := range []string{"", "somebody's"} {
			t.Run(fmt.Sprintf("%s, alias %q", name, alias), func(t *testing.T) {
				f := newFixture(t)
				f.forwarding()
				pod, h := f.pod("4")
				_, other := f.pod("4")
				at := f.strip(pod, h, alias, left.hide, left.settings...)
				was := f.at(at)
				cut := f.kind.Cut(t.Context(), h)
				now := f.at(at)
				if !left.ours {
					released := f.kind.Release(t.Context(), []hold.Hold{h})[0]
					if cut == nil || released == nil || f.at(at) != was {
						t.Errorf("Cut says %v, Release %v; the link was %+v and is %+v", cut, released, was, f.at(at))
					}
					must(t, f.conn.Do(rtnl.DelLinkAt(at)))
					must(t, f.kind.Cut(t.Context(), h))
					f.release(h)
					return
				}
				if must(t, cut); now.Group != f.groups.Cut() {
					t.Errorf("the link that is cut off is %+v", now)
				}
				f.release(h)
				if l := f.at(at); l.Index != 0 {
					t.Errorf("what is released is there: %+v", l)
				}
				must(t, f.verify(other))
			})
		}
	}
}

// A pod's link has lost all marks but its routes, and the pod has moved its end. One route of
// Berth's makes Berth owe the release. Routes of another program show nothing: Berth takes the
// link for a stranger's, and leaves it alone.
func TestOthersRoutesProveNothing(t *testing.T) {
	f := newFixture(t)
	f.forwarding()
	pod, h := f.pod(both)
	at := f.strip(pod, h, "", hide{second: true, index: true, end: true}, rtnl.MAC(another), rtnl.Group(0))
	was := f.at(at)
	t.Cleanup(func() { f.conn.Do(rtnl.DelLinkAt(at)) })
	replace := func(a netip.Addr) {
		metric := 0
		if a.Is6() {
			metric = link.HostMetric6
		}
		nettest.Run(t, nil, fmt.Sprintf("ip route replace %s dev %s proto static metric %d", a, was.Name, metric))
	}
	v4, v6 := spec(h).Addresses[0], spec(h).Addresses[1]
	replace(v4)
	if err := f.kind.Cut(t.Context(), h); err == nil || !strings.Contains(err.Error(), "Berth leaves it alone") {
		t.Errorf("with one route of Berth's Cut says %v", err)
	}
	replace(v6)
	must(t, f.kind.Cut(t.Context(), h))
	f.release(h)
	if now := f.at(at); now != was {
		t.Errorf("the link was %+v and is %+v", was, now)
	}
}

// A repair gives a link that is found without its alias its name and its alias back. It remains the
// same link.
func TestStrippedIsRepaired(t *testing.T) {
	for name, left := range strips {
		if !left.ours || left.hide.end {
			continue
		}
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.forwarding()
			pod, h := f.pod(both)
			at := f.strip(pod, h, "", left.hide, left.settings...)
			if err := f.verify(h); !errors.Is(err, hold.ErrChanged) {
				t.Errorf("Verify says %v", err)
			}
			f.wantRepaired(h, at)
		})
	}
}

// Find finds a link whose alias is not one of Berth's if enough else shows that the link is this
// instance's. Find returns it under the name that ADD gave it. If too little shows whose the link is,
// Find leaves it out.
func TestStrippedIsFound(t *testing.T) {
	for name, want := range map[string]struct {
		hide
		settings []rtnl.Setting
		found    bool
	}{
		"second name and group": {hide{index: true}, []rtnl.Setting{rtnl.MAC(another)}, true},
		"second name and MAC":   {hide{index: true}, []rtnl.Setting{rtnl.Group(0)}, true},
		"index and group":       {hide{second: true}, []rtnl.Setting{rtnl.MAC(another)}, true},
		"second name":           {hide{index: true}, []rtnl.Setting{rtnl.MAC(another), rtnl.Group(0)}, false},
		"group":                 {hide{index: true, second: true}, nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			pod, h := f.pod("4")
			at := f.strip(pod, h, "somebody's", want.hide, want.settings...)
			found, err := f.kind.Find(t.Context(), nil)
			must(t, err)
			if len(found) > 1 || (len(found) == 1) != want.found {
				t.Errorf("found %v", found)
			}
			if f.release(found...); (f.at(at).Index == 0) != want.found {
				t.Errorf("then the link is %+v", f.at(at))
			}
		})
	}
}

// If something leads to a link without an alias of Berth's that is another program's, Berth
// leaves it alone, and the link is in nobody's way.
func TestStrangersAreLeft(t *testing.T) {
	type ends struct {
		*fixture
		pod  *ns.Netns
		h    hold.Hold // whose link is gone
		was  rtnl.Link // that link
		name string    // the stranger
	}
	for name, lead := range map[string]func(e ends, index int){
		"second name": func(e ends, _ int) {
			must(e, e.conn.Do(rtnl.AddAltName(e.name, "berth-"+e.was.Name)))
		},
		"second name, of another of the instance": func(e ends, _ int) {
			must(e, e.conn.Do(rtnl.AddAltName(e.name, "berth-btestaaaaaaaaaa"), rtnl.AddAltName(e.name, "berth-"+e.was.Name),
				rtnl.SetLink(e.name, rtnl.Group(e.groups.Live()))))
		},
		"index": func(e ends, _ int) {
			must(e, e.conn.Do(rtnl.DelLink(e.name),
				rtnl.AddVeth(rtnl.End{Name: e.name, Index: e.was.Index}, 0, rtnl.End{Name: "peer0"}, nettest.Pod(e).Fd())))
		},
		"route": func(e ends, index int) {
			must(e, e.conn.Do(rtnl.SetLink(e.name, rtnl.Up()),
				rtnl.AddRoute(rtnl.Route{Dst: prefixOf(spec(e.h).Addresses[0]), Index: index})))
		},
		"a pod that lies": func(e ends, index int) {
			inside, err := rtnl.Open(e.pod)
			must(e, err)
			defer inside.Close()
			must(e, inside.Do(rtnl.AddVeth(rtnl.End{Name: "lie", Index: index}, 0, rtnl.End{Name: "eth0"}, e.pod.Fd())))
		},
		"name": func(e ends, index int) {
			must(e, e.conn.Do(rtnl.Rename(index, e.was.Name)))
		},
		"name, of another of the instance": func(e ends, index int) {
			must(e, e.conn.Do(rtnl.SetLink(e.name, rtnl.Group(e.groups.Live())), rtnl.Rename(index, e.was.Name)))
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.forwarding()
			pod, h := f.pod("4")
			e := ends{f, pod, h, f.show(h), f.alias()}
			var was, now rtnl.Link
			must(t, f.conn.Do(rtnl.AddVeth(rtnl.End{Name: e.name}, 0, rtnl.End{Name: "peer0"}, nettest.Pod(t).Fd()),
				rtnl.GetLink(e.name, &was), rtnl.DelLink(e.was.Name)))
			t.Cleanup(func() { f.conn.Do(rtnl.DelLink(e.name)); f.conn.Do(rtnl.DelLink(e.was.Name)) })
			lead(e, was.Index)
			if f.conn.Do(rtnl.GetLink(e.name, &was)) != nil { // the stranger has the name of the pod's link
				must(t, f.conn.Do(rtnl.GetLink(e.was.Name, &was)))
				if err := f.kind.Acquire(t.Context(), h); !errors.Is(err, hold.ErrForeign) {
					t.Errorf("Acquire says %v", err)
				}
				if found, err := f.kind.Find(t.Context(), nil); err != nil || len(found) > 0 {
					t.Errorf("found %v, %v", found, err)
				}
			}
			must(t, f.kind.Cut(t.Context(), h))
			f.release(h)
			if now = f.at(was.Index); was != now {
				t.Errorf("another's link was %+v and is %+v", was, now)
			}
		})
	}
}

// A pod has a second interface of another plugin, a veth without an alias. The pod deletes
// Berth's interface and gives its name to the other one. An agent that has seen the link
// knows its index, and so knows that the other interface is not Berth's: the agent releases the pod,
// although the pod's namespace lives on. An agent that has not seen the link cannot know.
func TestOthersInterfaceIsLeft(t *testing.T) {
	for name, seen := range map[string]bool{"seen": true, "unseen": false} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			pod, h := f.pod("4")
			others := f.alias()
			var was rtnl.Link
			must(t, f.conn.Do(rtnl.AddVeth(rtnl.End{Name: others}, 0, rtnl.End{Name: "net1"}, pod.Fd()), rtnl.GetLink(others, &was)))
			t.Cleanup(func() { f.conn.Do(rtnl.DelLink(others)) })
			inside, err := rtnl.Open(pod)
			must(t, err)
			defer inside.Close()
			if !seen {
				f.hide(pod, h, hide{index: true})
			}
			var net1 rtnl.Link
			must(t, inside.Do(rtnl.DelLink("eth0"), rtnl.GetLink("net1", &net1)))
			must(t, inside.Do(rtnl.Rename(net1.Index, "eth0")))
			cut, released := f.kind.Cut(t.Context(), h), f.kind.Release(t.Context(), []hold.Hold{h})[0]
			if (cut == nil) != seen || (released == nil) != seen {
				t.Errorf("Cut says %v, Release %v", cut, released)
			}
			if now := f.at(was.Index); now.Alias != "" || now.Group != 0 || now.Index == 0 {
				t.Errorf("another's link is %+v", now)
			}
			must(t, inside.Do(rtnl.DelLink("eth0")))
		})
	}
}

// Two links have exchanged their names, and lost their aliases and second names. Even an agent that has
// just started recognizes each link by what else the link has, so that releasing one owner does not
// touch the other owner's link.
func TestExchanged(t *testing.T) {
	for name, what := range map[string]hide{"seen": {second: true}, "unseen so far": {second: true, index: true}} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.forwarding()
			pod, h := f.pod("4")
			netns, other := f.pod("4")
			f.hide(pod, h, what)
			f.hide(netns, other, what)
			at, otherAt := f.show(h).Index, f.show(other).Index
			must(t, f.conn.Do(rtnl.SetLinkAt(at, rtnl.Alias("mine")), rtnl.SetLinkAt(otherAt, rtnl.Alias("mine")),
				rtnl.Rename(at, f.alias()), rtnl.Rename(otherAt, spec(h).Name), rtnl.Rename(at, spec(other).Name)))
			must(t, f.kind.Cut(t.Context(), h))
			if f.at(at).Group != f.groups.Cut() || f.at(otherAt).Group != f.groups.Live() {
				t.Errorf("behind the cut of the one they are %+v and %+v", f.at(at), f.at(otherAt))
			}
			f.release(h)
			if f.at(at).Index != 0 {
				t.Errorf("what is released is there: %+v", f.at(at))
			}
			f.wantRepaired(other, otherAt)
		})
	}
}

// Before Berth says that a link is gone, and if no other way leads to the link, it lists all links: at
// most once in the agent's life, and not at all if the agent has seen the link.
func TestHidden(t *testing.T) {
	f := newFixture(t)
	pod, h := f.pod("4")
	netns, other := f.pod("4")
	f.hide(pod, h, hide{second: true, index: true, routes: true})
	f.hide(netns, other, hide{second: true, routes: true})
	at, otherAt := f.rename(h), f.rename(other)
	for _, p := range []*ns.Netns{pod, netns} {
		must(t, unix.Unmount(p.Ref().Path, unix.MNT_DETACH))
	}
	must(t, f.kind.Cut(context.Background(), h))
	if l := f.at(at); l.Group != f.groups.Cut() {
		t.Errorf("the link that is cut off is %+v", l)
	}
	f.release(h, other)
	if f.at(at).Index != 0 || f.at(otherAt).Index != 0 {
		t.Errorf("what is released is there: %+v, %+v", f.at(at), f.at(otherAt))
	}
}

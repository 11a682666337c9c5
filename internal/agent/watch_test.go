package agent

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/kinds/link"
	"github.com/berth-net/berth/internal/mend"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/node"
)

// The news that the agent hears decides when the agent looks at an owner's things. The agent never
// looks because of its own changes. It looks later at a link that a plugin may have cut off, and more
// and more seldom at an owner whose things change again and again.
func TestWatcher(t *testing.T) {
	r := start(t)
	pod := nettest.Pod(t)
	shape := rtnl.Rate{Rate: 1_000_000, Burst: 10_000}
	res := r.add(request("c", pod, `"runtimeConfig":{"bandwidth":{"ingressRate":8000000,"ingressBurst":80000}}`))
	w := mend.NewWatcher(r.mend)
	t0 := time.Now()
	const nothing = time.Hour
	wait := func(what string, now time.Time, want time.Duration) {
		t.Helper()
		if got := w.Next(now); got != want {
			t.Errorf("%s: looks in %s, not %s", what, got, want)
		}
	}
	attrs := nettest.Link(t, res.Interfaces[0].Name).Attrs()
	link := rtnl.Link{
		Name: attrs.Name, Alias: attrs.Alias, MAC: attrs.HardwareAddr.String(), MTU: attrs.MTU, Group: attrs.Group, Index: attrs.Index, Up: true,
	}
	route := rtnl.Route{Dst: netip.MustParsePrefix("10.88.0.1/32")}
	w.Hear(rtnl.News{Change: rtnl.LinkSet, Link: link}, t0)
	wait("a link as it should be", t0, nothing)
	other := link
	other.Name = "bzzzzaaaaaaaaaa"
	other.Alias = ""
	w.Hear(rtnl.News{Change: rtnl.LinkGone, Link: other}, t0)
	w.Hear(rtnl.News{Change: rtnl.RouteGone, Route: rtnl.Route{Dst: netip.MustParsePrefix("10.88.0.9/32")}}, t0)
	wait("a link and a route of nobody", t0, nothing)

	w.Hear(rtnl.News{Change: rtnl.Reshaped, Link: rtnl.Link{Index: 1}, Shape: shape}, t0)
	w.Hear(rtnl.News{Change: rtnl.Reshaped, Link: rtnl.Link{Index: link.Index}, Shape: shape}, t0)
	wait("a limit as it should be, and one of nobody", t0, nothing)
	w.Hear(rtnl.News{Change: rtnl.Reshaped, Link: rtnl.Link{Index: link.Index}}, t0)
	wait("a limit that is gone", t0, mend.Soon)
	w = mend.NewWatcher(r.mend)

	link.Up = false
	w.Hear(rtnl.News{Change: rtnl.LinkDown, Link: link}, t0)
	w.Hear(rtnl.News{Change: rtnl.RouteGone, Route: route}, t0)
	w.Hear(rtnl.News{Change: rtnl.LinkSet, Link: link}, t0)
	wait("a link that is down", t0, mend.Down)
	link.Up = true
	w.Hear(rtnl.News{Change: rtnl.LinkSet, Link: link}, t0)
	wait("and up", t0, mend.Soon)
	w.Act(t.Context(), t0)
	w.Wait()
	wait("before its time", t0, mend.Soon)
	now := t0
	for n := range 12 {
		now = now.Add(w.Next(now))
		w.Act(t.Context(), now)
		w.Wait()
		wait("after it", now, nothing)
		w.Hear(rtnl.News{Change: rtnl.RouteGone, Route: route}, now)
		if n < 8 {
			wait("again", now, mend.Fight<<n)
		} else {
			wait("again and again", now, min(mend.Truce, mend.Fight<<n))
		}
	}
	now = now.Add(w.Next(now))
	w.Act(t.Context(), now)
	w.Wait()
	now = now.Add(4*mend.Truce + time.Second)
	w.Hear(rtnl.News{Change: rtnl.RouteGone, Route: route}, now)
	wait("after a long peace", now, mend.Soon)

	w.Hear(rtnl.News{Change: rtnl.Lost}, now)
	now = now.Add(mend.Soon)
	must(t, netlink.LinkDel(nettest.Link(t, link.Name)))
	w.Act(t.Context(), now)
	w.Wait() // everything
	r.wantClean()
	w.Hear(rtnl.News{Change: rtnl.Lost}, now)
	wait("everything again", now, mend.Everything)
}

// Holds that are gone with their pod wait for DEL: nothing else gives them back at once. The
// agent does not mend a pod that is being released.
func TestWatcherLeavesTheDead(t *testing.T) {
	r := start(t)
	pod := nettest.Pod(t)
	name := r.add(request("c", pod)).Interfaces[0].Name
	w := mend.NewWatcher(r.mend)
	nettest.Delete(t, pod)
	now := time.Now()
	w.Hear(rtnl.News{Change: rtnl.LinkGone, Link: rtnl.Link{Name: name}}, now)
	w.Act(t.Context(), now.Add(mend.Soon))
	w.Wait()
	id := r.index.All()[0].Owner.ID
	if o, _ := r.core.Ledger.Owner(id); !o.Wanted() {
		t.Error("a link that went with its pod is mended")
	}
	must(t, r.core.Engine.Release(t.Context(), []hold.ID{id}))
	w = mend.NewWatcher(r.mend)
	w.Hear(rtnl.News{Change: rtnl.LinkDown, Link: rtnl.Link{Name: name}}, now)
	if w.Next(now) != time.Hour {
		t.Error("a pod that is being released is looked at")
	}
}

// aheadLinks counts the calls of ListAhead.
type aheadLinks struct {
	*link.Links
	lists int
}

func (l *aheadLinks) ListAhead() {
	l.lists++
	l.Links.ListAhead()
}

// An agent that will watch lists the links while it reads its ledger, unless deletions are
// queued: the deletions go first.
func TestListsAhead(t *testing.T) {
	r := start(t)
	r.add(request("c", nettest.Pod(t)))
	for _, test := range []struct {
		watches, deletion bool
		lists             int
	}{{true, false, 1}, {false, false, 0}, {true, true, 0}} {
		r.close()
		if test.deletion {
			r.enqueue(r.deletion("c", ""))
		}
		o, err := r.options()
		must(t, err)
		var counted *aheadLinks
		r.Agent, err = open(o, func() (*node.Node, error) {
			n, err := r.kernel()
			equip := n.Equip
			n.Equip = func(n *node.Node, h node.Hooks) error {
				err := equip(n, h)
				counted = &aheadLinks{Links: n.Links.(*link.Links)}
				n.Links = counted
				return err
			}
			return n, err
		}, test.watches)
		must(t, err)
		if counted.lists != test.lists {
			t.Errorf("%+v: %d lists ahead", test, counted.lists)
		}
		must(t, r.Restore(t.Context()))
	}
	r.wantGone("c")
}

// A starting agent lists the links while it reads its ledger, and goes by that list. Changes
// that others make in between are mended as soon as the agent watches.
func TestChangedWhileTheLedgerIsRead(t *testing.T) {
	r := start(t)
	name := r.add(request("c", nettest.Pod(t))).Interfaces[0].Name
	r.add(request("d", nettest.Pod(t))) // for a single link the agent makes no list
	r.close()
	o, err := r.options()
	must(t, err)
	r.Agent, err = open(o, r.kernel, true)
	must(t, err)
	_, err = r.node.Links.Kind().Find(t.Context(), hold.Glance()) // the list has ended
	must(t, err)
	must(t, netlink.LinkSetMTU(nettest.Link(t, name), 1300)) // ip link set NAME mtu 1300
	must(t, r.Restore(t.Context()))
	if len(r.findings()) == 0 {
		t.Error("the restore has listed the links once more")
	}

	ctx, stop := context.WithCancel(t.Context())
	watched := make(chan struct{})
	go func() { defer close(watched); r.mend.Keep(ctx) }()
	nettest.Eventually(t, "the link to be as it was", func() bool { return len(r.findings()) == 0 })
	stop()
	<-watched
	r.wantClean()
}

// If somebody switches forwarding off, the agent turns it on again soon, and later each time if
// somebody switches it off again and again. An agent that leaves forwarding alone hears nothing of it.
func TestWatcherForwards(t *testing.T) {
	r := start(t, "default=10.88.0.0/24")
	host := r.add(request("c", nettest.Pod(t))).Interfaces[0].Name
	index := nettest.Link(t, host).Attrs().Index
	w := mend.NewWatcher(r.mend)
	t0 := time.Now()
	wait := func(what string, now time.Time, want time.Duration) {
		t.Helper()
		if got := w.Next(now); got != want {
			t.Errorf("%s: looks in %s, not %s", what, got, want)
		}
	}
	value := func(name, want string) {
		t.Helper()
		if got, err := ns.Sysctl(name); err != nil || got != want {
			t.Errorf("%s is %s, %v, want %s", name, got, err, want)
		}
	}
	node := rtnl.News{Change: rtnl.Unforwarded}
	link := rtnl.News{Change: rtnl.Unforwarded, Link: rtnl.Link{Index: index}}
	nobodys := rtnl.News{Change: rtnl.Unforwarded, Link: rtnl.Link{Index: 1}}

	nettest.Sysctl(t, r.node.Here, "ipv4/ip_forward", "0")
	w.Hear(node, t0)
	w.Hear(link, t0)
	wait("the node and its links", t0, mend.Soon)
	t0 = t0.Add(mend.Soon)
	w.Act(t.Context(), t0)
	w.Wait()
	value("ipv4/ip_forward", "1")
	value("ipv4/conf/"+host+"/forwarding", "1")
	wait("when all is on again", t0, time.Hour)
	w.Hear(node, t0)
	wait("the node again", t0, mend.Fight)
	w.Act(t.Context(), t0.Add(mend.Fight))
	w.Wait()

	t0 = t0.Add(time.Hour)
	nettest.Sysctl(t, r.node.Here, "ipv4/conf/"+host+"/forwarding", "0")
	w.Hear(link, t0)
	w.Hear(nobodys, t0)
	wait("a link alone", t0, mend.Soon)
	w.Act(t.Context(), t0.Add(mend.Soon))
	w.Wait()
	value("ipv4/conf/"+host+"/forwarding", "1")

	c := *r.ground.Config()
	c.Forwarding = false
	must(t, r.ground.Reload(t.Context(), &c))
	t0 = t0.Add(time.Hour)
	w.Hear(node, t0)
	w.Hear(link, t0)
	wait("forwarding is left alone", t0, time.Hour)
}

package agent

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/kinds/link"
	"github.com/berth-net/berth/internal/nettest"
)

// What is heard decides when somebody's things are looked at: what the agent
// does itself never, a link that a plugin may have cut off later than others,
// and who is changed again and again more and more seldom.
func TestWatcher(t *testing.T) {
	r := start(t)
	pod := nettest.Pod(t)
	res := r.add(request("c", pod))
	w := newWatcher(r.Agent)
	t0 := time.Now()
	const nothing = time.Hour
	wait := func(what string, now time.Time, want time.Duration) {
		t.Helper()
		if got := w.next(now); got != want {
			t.Errorf("%s: looks in %s, not %s", what, got, want)
		}
	}
	attrs := linkNamed(t, res.Interfaces[0].Name).Attrs()
	link := rtnl.Link{
		Name: attrs.Name, Alias: attrs.Alias, MAC: attrs.HardwareAddr.String(), MTU: attrs.MTU, Group: attrs.Group, Index: attrs.Index, Up: true,
	}
	route := rtnl.Route{Dst: netip.MustParsePrefix("10.88.0.1/32")}
	w.hear(rtnl.News{Change: rtnl.LinkSet, Link: link}, t0)
	wait("a link as it should be", t0, nothing)
	other := link
	other.Name = "bzzzzaaaaaaaaaa"
	other.Alias = ""
	w.hear(rtnl.News{Change: rtnl.LinkGone, Link: other}, t0)
	w.hear(rtnl.News{Change: rtnl.RouteGone, Route: rtnl.Route{Dst: netip.MustParsePrefix("10.88.0.9/32")}}, t0)
	wait("a link and a route of nobody", t0, nothing)

	link.Up = false
	w.hear(rtnl.News{Change: rtnl.LinkDown, Link: link}, t0)
	w.hear(rtnl.News{Change: rtnl.RouteGone, Route: route}, t0)
	w.hear(rtnl.News{Change: rtnl.LinkSet, Link: link}, t0)
	wait("a link that is down", t0, down)
	link.Up = true
	w.hear(rtnl.News{Change: rtnl.LinkSet, Link: link}, t0)
	wait("and up", t0, soon)
	w.act(t.Context(), t0)
	w.work.Wait()
	wait("before its time", t0, soon)
	now := t0
	for n := range 12 {
		now = now.Add(w.next(now))
		w.act(t.Context(), now)
		w.work.Wait()
		wait("after it", now, nothing)
		w.hear(rtnl.News{Change: rtnl.RouteGone, Route: route}, now)
		if n < 8 {
			wait("again", now, fight<<n)
		} else {
			wait("again and again", now, min(truce, fight<<n))
		}
	}
	now = now.Add(w.next(now))
	w.act(t.Context(), now)
	w.work.Wait()
	now = now.Add(4*truce + time.Second)
	w.hear(rtnl.News{Change: rtnl.RouteGone, Route: route}, now)
	wait("after a long peace", now, soon)

	w.hear(rtnl.News{Change: rtnl.Lost}, now)
	now = now.Add(soon)
	must(t, netlink.LinkDel(linkNamed(t, link.Name)))
	w.act(t.Context(), now)
	w.work.Wait() // everything
	r.wantClean()
	w.hear(rtnl.News{Change: rtnl.Lost}, now)
	wait("everything again", now, everything)
}

// What is gone with its pod is for DEL: nobody else gives it back at once. Nor
// is a pod mended that is being released.
func TestWatcherLeavesTheDead(t *testing.T) {
	r := start(t)
	pod := nettest.Pod(t)
	name := r.add(request("c", pod)).Interfaces[0].Name
	w := newWatcher(r.Agent)
	nettest.Delete(t, pod)
	now := time.Now()
	w.hear(rtnl.News{Change: rtnl.LinkGone, Link: rtnl.Link{Name: name}}, now)
	w.act(t.Context(), now.Add(soon))
	w.work.Wait()
	id := r.index.all()[0].owner.ID
	if o, _ := r.ledger.Owner(id); !o.Wanted() {
		t.Error("a link that went with its pod is mended")
	}
	must(t, r.engine.Release(t.Context(), []hold.ID{id}))
	w = newWatcher(r.Agent)
	w.hear(rtnl.News{Change: rtnl.LinkDown, Link: rtnl.Link{Name: name}}, now)
	if len(w.suspects) > 0 {
		t.Error("a pod that is being released is looked at")
	}
}

// aheadLinks counts lists that are made ahead.
type aheadLinks struct {
	*link.Links
	lists int
}

func (l *aheadLinks) ListAhead() {
	l.lists++
	l.Links.ListAhead()
}

// An agent that will watch lists the links while it reads its ledger, unless
// deletions wait: they go first.
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
		r.Agent, err = open(o, func(a *Agent) error {
			err := r.kernel(a)
			counted = &aheadLinks{Links: a.links.(*link.Links)}
			a.links = counted
			return err
		}, test.watches)
		must(t, err)
		if counted.lists != test.lists {
			t.Errorf("%+v: %d lists ahead", test, counted.lists)
		}
		must(t, r.Restore(t.Context()))
	}
	r.wantGone("c")
}

// A starting agent lists the links while it reads its ledger, and goes by that
// list. What others do in between is mended as soon as it watches.
func TestChangedWhileTheLedgerIsRead(t *testing.T) {
	r := start(t)
	name := r.add(request("c", nettest.Pod(t))).Interfaces[0].Name
	r.add(request("d", nettest.Pod(t))) // of a single one nobody lists
	r.close()
	o, err := r.options()
	must(t, err)
	r.Agent, err = open(o, r.kernel, true)
	must(t, err)
	_, err = r.links.Kind().Find(t.Context(), hold.Glance()) // the list has ended
	must(t, err)
	must(t, netlink.LinkSetMTU(linkNamed(t, name), 1300)) // ip link set NAME mtu 1300
	must(t, r.Restore(t.Context()))
	if len(r.findings()) == 0 {
		t.Error("the restore has listed the links once more")
	}

	ctx, stop := context.WithCancel(t.Context())
	watched := make(chan struct{})
	go func() { defer close(watched); r.watch(ctx) }()
	nettest.Eventually(t, "the link to be as it was", func() bool { return len(r.findings()) == 0 })
	stop()
	<-watched
	r.wantClean()
}

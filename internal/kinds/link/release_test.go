package link_test

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/kinds/link"
	"github.com/berth-net/berth/internal/nettest"
)

// Cut moves a link to the cut group and deletes the routes to its pod. It changes nothing
// else.
func TestCut(t *testing.T) {
	for _, barrier := range []bool{true, false} {
		t.Run(map[bool]string{true: "barrier", false: "no barrier"}[barrier], func(t *testing.T) {
			f := newFixture(t, func(o *link.Options) { o.Barrier = func() bool { return barrier } })
			f.forwarding()
			pod, h := f.pod(both)
			other, alive := f.pod(both)
			must(t, f.kind.Cut(t.Context(), h))

			l := f.show(h)
			if l.Group != f.groups.Cut() || l.Up != barrier {
				t.Errorf("the link is %+v", l)
			}
			routes, err := f.conn.Routes(rtnl.RouteFilter{Index: l.Index})
			must(t, err)
			if len(routes) > 0 {
				t.Errorf("routes %v lead to the pod", routes)
			}
			for i, node := range []netip.Addr{node4, node6} {
				nettest.NoPing(t, nil, spec(h).Addresses[i])
				nettest.NoPing(t, pod, node)
				nettest.Ping(t, other, node)
			}
			if err := f.verify(h); !errors.Is(err, hold.ErrChanged) || !strings.Contains(err.Error(), "cut off") {
				t.Errorf("Verify says %v", err)
			}
			must(t, f.verify(alive))
			must(t, f.kind.Cut(t.Context(), h)) // once more
			must(t, f.kind.Cut(t.Context(), f.hold(pod.Ref(), both)))
		})
	}
}

// A cut does not take a link out of the group with which Release is deleting it.
func TestCutLeavesABatch(t *testing.T) {
	f := newFixture(t)
	_, h := f.pod("4")
	must(t, f.conn.Regroup(f.groups.Batch(1), f.show(h))[0])
	must(t, f.kind.Cut(t.Context(), h))
	if l := f.show(h); l.Group != f.groups.Batch(1) {
		t.Errorf("the link is %+v", l)
	}
}

// Cut leaves another program's route to a pod's address alone.
func TestCutLeavesOthersRoutes(t *testing.T) {
	f := newFixture(t)
	_, h := f.pod("4")
	other := rtnl.Route{Dst: netip.PrefixFrom(spec(h).Addresses[0], 32), Index: 1, Metric: 5}
	must(t, f.conn.Do(rtnl.AddRoute(other)))
	defer f.conn.Do(rtnl.DelRoute(other))
	must(t, f.kind.Cut(t.Context(), h))
	if routes, err := f.conn.Routes(rtnl.RouteFilter{Index: 1}); err != nil || len(routes) != 1 {
		t.Errorf("routes %v, %v are left, not %v", routes, err, other)
	}
}

// Verify compares many links by one list, and Release deletes them in a few messages.
func TestMany(t *testing.T) {
	f := newFixture(t)
	f.forwarding()
	before := nettest.Snapshot(t, nil)
	hs := f.many(200, both)
	for _, err := range f.kind.Verify(t.Context(), nil, hs) {
		must(t, err)
	}
	gone, down := 17, 77
	f.release(hs[gone])
	l := nettest.Link(t, spec(hs[down]).Name)
	must(t, netlink.LinkSetDown(l))
	for i, err := range f.kind.Verify(t.Context(), nil, hs) {
		want := map[int]error{gone: hold.ErrGone, down: hold.ErrChanged}[i]
		if !errors.Is(err, want) {
			t.Errorf("link %d: %v, not %v", i, err, want)
		}
	}

	found, err := f.kind.Find(t.Context(), nil)
	must(t, err)
	if len(found) != len(hs)-1 {
		t.Errorf("%d of %d links are found", len(found), len(hs)-1)
	}
	f.release(hs...)
	if diff := before.Diff(nettest.Snapshot(t, nil).Without("mount")); strings.Contains(diff, "+") {
		t.Errorf("left behind:\n%s", diff)
	}
}

// If the kernel cannot delete a group, Release deletes each link by itself.
func TestReleaseOneByOne(t *testing.T) {
	f := newFixture(t)
	hs := f.many(3, "4")
	// The kernel cannot delete lo; the test moves lo into the group of the next batch.
	lo := func(group int) {
		l := nettest.Link(t, "lo")
		must(t, netlink.LinkSetGroup(l, group))
	}
	next := f.nextBatch()
	lo(int(next))
	defer lo(0)
	f.release(hs...)
	for _, h := range hs {
		if f.show(h).Index != 0 {
			t.Errorf("%s is still there", h.Spec)
		}
	}
	if l := f.group("lo"); l != next {
		t.Errorf("lo is in group %d: the batch had another group than %d", l, next)
	}
}

// nextBatch releases two links, and learns from their news which group their batch had.
// The next batch has the next group, which nextBatch returns.
func (f *fixture) nextBatch() uint32 {
	f.Helper()
	hs := f.many(2, "4")
	links, err := rtnlWatch()
	must(f, err)
	f.release(hs...)
	group, ok := links(spec(hs[0]).Name)
	if !ok {
		f.Fatal("no group seen")
	}
	first, _ := f.groups.Dying()
	return f.groups.Batch(group - first) // Batch(0) is first+1
}

// rtnlWatch records the last group that each link was in before Release deleted it.
func rtnlWatch() (func(name string) (uint32, bool), error) {
	updates, done := make(chan netlink.LinkUpdate, 1024), make(chan struct{})
	if err := netlink.LinkSubscribe(updates, done); err != nil {
		return nil, err
	}
	return func(name string) (uint32, bool) {
		defer close(done)
		for u := range updates {
			if u.Link.Attrs().Name == name && u.Header.Type == unix.RTM_DELLINK {
				return u.Link.Attrs().Group, true
			}
		}
		return 0, false
	}, nil
}

func (f *fixture) group(name string) uint32 {
	f.Helper()
	var l rtnl.Link
	must(f, f.conn.Do(rtnl.GetLink(name, &l)))
	return l.Group
}

// Releasing a link that does not exist succeeds. A canceled Release returns the context's error.
func TestReleaseAnswers(t *testing.T) {
	f := newFixture(t)
	_, h := f.pod("4")
	pod, vanished := f.pod("4")
	nettest.Delete(t, pod)
	nettest.Eventually(t, "the pod's end", func() bool { return f.show(vanished).Index == 0 })
	stranger := f.hold(pod.Ref(), "4")
	spec(stranger).Name = spec(h).Name

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := f.kind.Release(ctx, []hold.Hold{h})[0]; !errors.Is(err, context.Canceled) {
		t.Errorf("a canceled release says %v", err)
	}
	errs := f.kind.Release(t.Context(), []hold.Hold{stranger, vanished})
	if errs[0] == nil || errs[1] != nil {
		t.Errorf("another's link, a vanished one: %v", errs)
	}
	must(t, f.verify(h))
	errs = f.kind.Release(t.Context(), []hold.Hold{stranger, vanished, h})
	if errs[0] == nil || errs[1] != nil || errs[2] != nil {
		t.Errorf("another's link, a vanished one, one: %v", errs)
	}
}

package link_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/stamp"
)

// follow makes a fixture's links follow the kernel's news, until the test ends or calls end.
func (f *fixture) follow() (end func()) {
	f.Helper()
	m, err := f.conn.Monitor(f.groups, stamp.Link(prefix, ""))
	must(f, err)
	follower := f.links.Follow(m)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			if _, err := follower.Next(); err != nil {
				return
			}
		}
	}()
	end = func() {
		follower.Close()
		<-ended
	}
	f.Cleanup(end)
	return end
}

// look returns what Find and Verify answer in one look, as text.
func (f *fixture) look(ctx context.Context, look *hold.Look, hs []hold.Hold) []string {
	f.Helper()
	found, err := f.kind.Find(ctx, look)
	must(f, err)
	var seen []string
	for _, h := range found {
		s := spec(h)
		seen = append(seen, fmt.Sprintln(s.Name, s.Alias, s.MTU, s.HostMAC))
	}
	slices.Sort(seen)
	for _, err := range f.kind.Verify(ctx, look, hs) {
		seen = append(seen, fmt.Sprintln(err))
	}
	return seen
}

// Whatever others do to links, a glance sees what a look sees, as soon as the Follower has read the
// kernel's news.
func TestGlance(t *testing.T) {
	f, other := newFixture(t), newFixture(t) // other hears no news, and so lists the links
	f.follow()
	ctx := t.Context()
	hs := f.many(9, "4")
	defer func() { f.release(hs...) }()
	f.look(ctx, new(hold.Look), hs) // lists the links, for the glances
	var index []int
	for _, h := range hs {
		index = append(index, f.show(h).Index)
	}
	device := func(i int) netlink.Link {
		l, err := netlink.LinkByIndex(index[i])
		must(t, err)
		return l
	}
	for i, c := range []struct {
		what   string
		change func(i int) error
	}{
		{"MTU", func(i int) error { return netlink.LinkSetMTU(device(i), 1300) }},
		{"alias", func(i int) error { return netlink.LinkSetAlias(device(i), "mine") }},
		{"MAC", func(i int) error { return netlink.LinkSetHardwareAddr(device(i), net.HardwareAddr{2, 0, 0, 0, 0, 9}) }},
		{"group", func(i int) error { return netlink.LinkSetGroup(device(i), 0) }},
		{"down", func(i int) error { return netlink.LinkSetDown(device(i)) }},
		{"name", func(i int) error { return netlink.LinkSetName(device(i), "mine") }},
		{"a link deleted", func(i int) error { return f.conn.Do(rtnl.DelLink(spec(hs[i]).Name)) }},
		{"a new link", func(int) error { hs = append(hs, f.many(1, "4")...); return nil }},
	} {
		before := other.look(ctx, nil, hs)
		must(t, c.change(i))
		whole := other.look(ctx, nil, hs)
		if slices.Equal(whole, before) {
			t.Fatalf("%s: nothing has changed", c.what)
		}
		nettest.Eventually(t, "a glance to see that it is another: "+c.what, func() bool {
			return slices.Equal(f.look(ctx, hold.Glance(), hs), whole)
		})
	}
}

// Somebody takes away a link's alias and second name, and then its name and group in one message. The
// monitor does not tell of that message. A glance sees that the link has another name.
func TestGlanceAtUnheard(t *testing.T) {
	f, other := newFixture(t), newFixture(t)
	f.follow()
	ctx := t.Context()
	hs := f.many(3, "4")
	defer f.release(hs...)
	f.look(ctx, new(hold.Look), hs)
	nettest.Run(t, nil, fmt.Sprintf("ip link property del dev %s altname %s", spec(hs[0]).Name, stamp.AltName(spec(hs[0]).Name)))
	nettest.Run(t, nil, fmt.Sprintf("ip link set dev %s alias mine", spec(hs[0]).Name))
	nettest.Eventually(t, "a glance to see the alias", func() bool { return slices.Equal(f.look(ctx, hold.Glance(), hs), other.look(ctx, nil, hs)) })
	nettest.Run(t, nil, fmt.Sprintf("ip link set dev %s group 0 name %s", spec(hs[0]).Name, f.alias()))
	errs := f.kind.Verify(ctx, hold.Glance(), hs)
	if !errors.Is(errs[0], hold.ErrChanged) || errors.Join(errs[1:]...) != nil {
		t.Errorf("a glance sees %q", errs)
	}
	must(t, f.kind.Acquire(ctx, hs[0]))
	if err := errors.Join(f.kind.Verify(ctx, nil, hs)...); err != nil {
		t.Errorf("mended: %v", err)
	}
}

// As long as somebody follows the links, a glance does not list them. So a glance does not see
// a change whose news the monitor's filter drops.
func TestGlanceDoesNotList(t *testing.T) {
	f := newFixture(t)
	end := f.follow()
	ctx := t.Context()
	hs := f.many(3, "4")
	defer f.release(hs...)
	well := f.look(ctx, new(hold.Look), hs)
	must(t, f.conn.Regroup(f.groups.Cut(), f.show(hs[0]))[0])
	if got := f.look(ctx, hold.Glance(), hs); !slices.Equal(got, well) {
		t.Errorf("a glance sees what nobody has told:\n%s", got)
	}
	end()
	if got := f.look(ctx, hold.Glance(), hs); slices.Equal(got, well) {
		t.Error("once nobody is told, a glance does not list either")
	}
}

// If the Follower reads news late, and Release has released their link since, the news leave nothing in
// the memory.
func TestLateNewsOfReleased(t *testing.T) {
	f := newFixture(t)
	m, err := f.conn.Monitor(f.groups, stamp.Link(prefix, ""))
	must(t, err)
	follower := f.links.Follow(m)
	defer follower.Close()
	f.links.ListAhead()
	_, h := f.pod("4")
	must(t, f.kind.Cut(t.Context(), h))
	f.release(h)
	for gone := false; !gone; {
		news, err := follower.Next()
		must(t, err)
		gone = slices.ContainsFunc(news, func(n rtnl.News) bool { return n.Change == rtnl.LinkGone })
	}
	if n := f.links.Remembered(); n != 0 {
		t.Errorf("the memory knows %d links, and there is none", n)
	}
}

package link_test

import (
	"errors"
	"testing"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/stamp"
)

// A pod's program uses the pod's interface while Release deletes the link, alone or with another pod's.
// Both links are gone, and Release does not wait for the program.
func TestReleaseHeld(t *testing.T) {
	for _, others := range []int{0, 1} {
		f := newFixture(t)
		pod, h := f.pod("4")
		nettest.HoldLink(t, pod, "eth0")
		hs := f.many(others, "4")
		for i, err := range f.kind.Release(t.Context(), append(hs, h)) {
			if err != nil {
				t.Errorf("link %d of %d: %v", i, others+1, err)
			}
		}
		for _, h := range append(hs, h) {
			if err := f.conn.Do(rtnl.GetLink(spec(h).Name, new(rtnl.Link))); !errors.Is(err, kernel.ErrNotFound) {
				t.Errorf("%s is there: %v", spec(h).Name, err)
			}
		}
	}
}

// A pod's programs use half-made interfaces that Acquire has deleted, or interfaces that Release has
// deleted. After four such deletions Acquire makes no further interface for this pod, but repairs a whole
// one, and makes those of other pods. Acquire does not wait.
func TestAcquireHeld(t *testing.T) {
	f := newFixture(t)
	pod, h := f.pod("4")
	halfMade := func() { must(t, f.conn.Regroup(f.groups.Coming(), f.show(h))[0]) }
	var letGo func()
	for i := range 4 {
		letGo = nettest.HoldLink(t, pod, "eth0")
		if i%2 == 1 {
			halfMade()
		} else {
			must(t, f.kind.Release(t.Context(), append(f.many(i, "4"), h))...) // alone, or with others
		}
		must(t, f.kind.Acquire(t.Context(), h))
	}
	must(t, f.conn.Do(rtnl.SetLinkAt(f.show(h).Index, rtnl.Down())))
	must(t, f.kind.Acquire(t.Context(), h))
	must(t, f.verify(h))
	halfMade()
	if err := f.kind.Acquire(t.Context(), h); !errors.Is(err, kernel.ErrBusy) {
		t.Errorf("a fifth link is deleted: %v", err)
	}
	must(t, f.kind.Release(t.Context(), []hold.Hold{h})...)
	if err := f.kind.Acquire(t.Context(), h); !errors.Is(err, kernel.ErrBusy) || !errors.Is(err, hold.ErrUnused) {
		t.Errorf("the pod gets a sixth link, or the addresses of an ADD rest that could make no link: %v", err)
	}
	_, other := f.pod("4")
	must(t, f.kind.Acquire(t.Context(), other))
	letGo()
	nettest.Eventually(t, "the kernel has let the interface go", func() bool { return f.kind.Acquire(t.Context(), h) == nil })
	must(t, f.verify(h))
}

// A pod deletes its interface, and uses the next one, which comes to be half-made, while Acquire deletes it.
// The pod gets no further link until the kernel has answered, and then one at the same index: with another
// index it would get its share of connections anew.
func TestIndexOutlivesHeldLink(t *testing.T) {
	f := newFixture(t)
	pod, h := f.pod("4")
	index := f.show(h).Index
	nettest.Run(t, pod, "ip link del eth0")
	must(t, f.kind.Acquire(t.Context(), h))
	letGo := nettest.HoldLink(t, pod, "eth0")
	must(t, f.conn.Regroup(f.groups.Coming(), f.show(h))[0])
	for range 2 {
		if err := f.kind.Acquire(t.Context(), h); !errors.Is(err, kernel.ErrBusy) {
			t.Errorf("the pod gets a link while the kernel waits: %v", err)
		}
	}
	_, other := f.pod("4") // which may get the index that is free
	must(t, f.kind.Acquire(t.Context(), other))
	letGo()
	nettest.Eventually(t, "the pod gets its link", func() bool { return f.kind.Acquire(t.Context(), h) == nil })
	if now := f.show(h).Index; now != index {
		t.Errorf("link %d became %d", index, now)
	}
}

// The kernel's news that a half-made link is gone come only when Acquire has deleted the link, and waits for
// the kernel's answer, because the pod uses the link. The pod gets no further link until the answer is there.
func TestLateNewsOfHeldLink(t *testing.T) {
	f := newFixture(t)
	pod, h := f.pod("4")
	index := f.show(h).Index
	m, err := f.conn.Monitor(f.groups, stamp.Link(prefix, ""))
	must(t, err)
	follower := f.links.Follow(m)
	defer follower.Close()
	nettest.Run(t, pod, "ip link del eth0")
	must(t, f.kind.Acquire(t.Context(), h))
	letGo := nettest.HoldLink(t, pod, "eth0")
	must(t, f.conn.Regroup(f.groups.Coming(), f.show(h))[0])
	busy := func(when string) {
		t.Helper()
		if err := f.kind.Acquire(t.Context(), h); !errors.Is(err, kernel.ErrBusy) {
			t.Errorf("the pod gets a link %s: %v", when, err)
		}
	}
	busy("while the kernel waits")
	busy("while the kernel waits") // this time Acquire lists all links, from when on the memory hears the news
	for gone := 0; gone < 2; {     // the pod has deleted the link once, and Acquire once
		news, err := follower.Next()
		must(t, err)
		for _, n := range news {
			if n.Change == rtnl.LinkGone && n.Link.Index == index {
				gone++
			}
		}
	}
	busy("after the news")
	letGo()
	nettest.Eventually(t, "the pod gets its link", func() bool { return f.kind.Acquire(t.Context(), h) == nil })
}

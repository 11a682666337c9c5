package link_test

import (
	"context"
	"slices"
	"testing"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/nettest"
)

// Once Sever or DownDying has set a cut link down nothing passes the link, even on this node, which has
// no table that drops packets.
func TestSever(t *testing.T) {
	for name, sever := range map[string]func(*fixture, context.Context, ...hold.Hold) error{
		"in the line":          func(f *fixture, ctx context.Context, hs ...hold.Hold) error { return f.kind.Sever(ctx, hs) },
		"as the table differs": func(f *fixture, ctx context.Context, _ ...hold.Hold) error { return f.links.DownDying(ctx) },
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.forwarding()
			pod, cut := f.pod(both)
			_, renamed := f.pod(both)
			_, batch := f.pod(both)
			gone := f.hold(pod.Ref(), both)
			other, alive := f.pod(both)
			for _, h := range []hold.Hold{cut, renamed, batch, gone} {
				must(t, f.kind.Cut(t.Context(), h))
			}
			must(t, f.conn.Regroup(f.groups.Batch(3), f.show(batch))[0])
			index := f.rename(renamed)
			must(t, sever(f, t.Context(), cut, renamed, batch, gone))
			must(t, sever(f, t.Context(), cut, renamed, batch, gone))
			for _, l := range []rtnl.Link{f.show(cut), f.at(index), f.show(batch)} {
				if l.Index == 0 || l.Up || !f.groups.IsDying(l.Group) {
					t.Errorf("a link that is cut off is %+v", l)
				}
			}
			nettest.NoPing(t, pod, node4)
			nettest.Ping(t, other, node4)
			must(t, f.verify(alive))

			f.release(cut, renamed, batch)
			must(t, sever(f, t.Context(), cut))
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			must(t, f.kind.Cut(t.Context(), alive))
			if err := sever(f, ctx, alive); err == nil {
				t.Error("a canceled call says that it is done")
			}
		})
	}
}

// Cut itself sets a link down whose queue holds packets back for the pod: the packets have passed all
// rules of the table, and would reach the pod after the answer to its DEL.
func TestCutOfShapedLink(t *testing.T) {
	f := newFixture(t)
	h := f.shaped(rtnl.Rate{Rate: 125_000, Burst: 12_500}, rtnl.Rate{})
	must(t, f.kind.Cut(t.Context(), h))
	if l := f.show(h); l.Index == 0 || l.Up || !f.groups.IsDying(l.Group) {
		t.Errorf("the link is %+v", l)
	}
}

// BenchmarkSever sets down links that are cut off, one after the other.
func BenchmarkSever(b *testing.B) {
	f := newFixture(b)
	f.forwarding()
	f.crowd(1000)
	hs := f.many(100, both)
	defer func() { f.release(hs...) }()
	i := 0
	for b.Loop() {
		if i == len(hs) {
			b.StopTimer()
			f.release(hs...)
			hs, i = f.many(100, both), 0
			b.StartTimer()
		}
		b.StopTimer()
		must(b, f.kind.Cut(context.Background(), hs[i]))
		b.StartTimer()
		must(b, f.kind.Sever(context.Background(), slices.Clone(hs[i:i+1])))
		i++
	}
}

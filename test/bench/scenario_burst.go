package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// The pods of a burst: as many as a Deployment that is scaled up puts on a node, and as many as a drain takes from one.
const (
	burstAdds = 30
	burstDels = 100
)

// burstPeers are those that Berth is compared with. ptp with host-local is what kindnet and kubenet have nodes do.
var burstPeers = []string{"bridge", "ptp"}

// burstFigures has the figures of each round.
type burstFigures struct {
	adds, dels           []time.Duration
	addP50, addWall      series
	delP50, answer, gone series // gone: from the first call until the last link is gone
}

// burst measures 30 ADDs at once, and 100 DELs at once: until all are answered, and until the kernel has told of the last link's end.
func burst(ctx context.Context, b *bench) error {
	ps, err := b.pods.first(burstDels)
	if err != nil {
		return err
	}
	var networks []*network
	all := map[string]*burstFigures{}
	for _, name := range append([]string{berthName}, burstPeers...) {
		n := b.network(name)
		if n == nil {
			continue
		}
		networks, all[name] = append(networks, n), new(burstFigures)
		if _, err := n.wave(ctx, ps[:burstAdds], burstAdds); err != nil { // not measured: it warms caches, and makes the bridge
			return err
		}
	}
	rounds := b.pick(9, 2)
	for round := range rounds {
		for i := range networks {
			n := networks[(round+i)%len(networks)]
			if err := all[n.name].round(ctx, n, ps); err != nil {
				return err
			}
		}
	}
	b.showBurst(rounds, networks, all)
	b.judgeBurst(all)
	return nil
}

// round adds a round.
func (f *burstFigures) round(ctx context.Context, n *network, ps []*pod) error {
	s, err := n.wave(ctx, ps[:burstAdds], burstAdds)
	if err != nil {
		return err
	}
	f.adds, f.addP50, f.addWall = append(f.adds, s.adds...), append(f.addP50, percentile(s.adds, 50)), append(f.addWall, s.addWall)

	links, err := veths()
	if err != nil {
		return err
	}
	attached := make([]*attachment, len(ps))
	for i, p := range ps {
		attached[i] = n.attachment(p)
	}
	if _, _, err := together(apiClients, attached, func(a *attachment) (time.Duration, error) { return a.add(ctx) }); err != nil {
		return err
	}
	w, err := watchEnds(links, len(ps))
	if err != nil {
		return err
	}
	defer w.close()
	begun := time.Now()
	dels, answer, err := together(len(attached), attached, func(a *attachment) (time.Duration, error) { return a.del(ctx) })
	if err != nil {
		return err
	}
	last, err := w.last(ctx)
	if err != nil {
		return err
	}
	f.dels, f.delP50 = append(f.dels, dels...), append(f.delP50, percentile(dels, 50))
	f.answer, f.gone = append(f.answer, answer), append(f.gone, last.Sub(begun))
	return n.settle(ctx, ps)
}

func (b *bench) showBurst(rounds int, networks []*network, all map[string]*burstFigures) {
	ratios := func(of func(*burstFigures) series, mine *burstFigures) (cells []string) {
		for _, peer := range burstPeers {
			text := ""
			if all[peer] != nil {
				_, text = of(mine).ratio(of(all[peer]))
			}
			cells = append(cells, text)
		}
		return cells
	}
	p50 := func(f *burstFigures) series { return f.addP50 }
	addWall := func(f *burstFigures) series { return f.addWall }
	answer := func(f *burstFigures) series { return f.answer }
	gone := func(f *burstFigures) series { return f.gone }
	adds := b.report.section(fmt.Sprintf("A burst of %d pods on one node, ADD: %d rounds", burstAdds, rounds),
		"plugin", "p50 ms", "rounds' p50", "p99 ms", "p50 x bridge", "p50 x ptp", "wall ms", "wall x bridge", "wall x ptp")
	dels := b.report.section(fmt.Sprintf("%d pods of one node deleted at once: %d rounds", burstDels, rounds),
		"plugin", "DEL p50 ms", "DEL p99 ms", "all answered ms", "x bridge", "x ptp", "the last link gone ms", "least-greatest ms", "x bridge", "x ptp")
	for _, n := range networks {
		f := all[n.name]
		cells := append([]string{n.name, num(median(f.addP50)), f.addP50.span(), num(percentile(f.adds, 99))}, ratios(p50, f)...)
		adds.row(append(append(cells, num(median(f.addWall))), ratios(addWall, f)...)...)
		cells = append([]string{n.name, num(median(f.delP50)), num(percentile(f.dels, 99)), num(median(f.answer))}, ratios(answer, f)...)
		dels.row(append(append(cells, num(median(f.gone)), f.gone.span()), ratios(gone, f)...)...)
	}
}

// judgeBurst compares Berth with bridge (issue 12).
func (b *bench) judgeBurst(all map[string]*burstFigures) {
	berth, bridge := all[berthName], all["bridge"]
	if berth == nil || bridge == nil {
		return
	}
	p50, _ := berth.addP50.ratio(bridge.addP50)
	gone, _ := berth.gone.ratio(bridge.gone)
	b.report.atMost(fmt.Sprintf("%d ADDs at once, p50 / bridge", burstAdds), p50, 0.5, "x")
	b.report.atMost(fmt.Sprintf("%d ADDs at once, p99 / bridge", burstAdds),
		float64(percentile(berth.adds, 99))/float64(percentile(bridge.adds, 99)), 0.5, "x")
	b.report.atMost(fmt.Sprintf("%d DELs at once, until the last link is gone / bridge", burstDels), gone, 1, "x")
}

// veths returns the indices of the node's ends of links to pods.
func veths() (map[int]bool, error) {
	all, err := netlink.LinkList()
	if err != nil {
		return nil, err
	}
	indices := map[int]bool{}
	for _, l := range all {
		if l.Type() == "veth" {
			indices[l.Attrs().Index] = true
		}
	}
	return indices, nil
}

// endWatch hears of links' ends.
type endWatch struct {
	left    map[int]bool // links that are there
	updates chan netlink.LinkUpdate
	done    chan struct{}
}

// watchEnds watches the links to n pods: those that are there now and were not before.
func watchEnds(before map[int]bool, n int) (*endWatch, error) {
	w := &endWatch{updates: make(chan netlink.LinkUpdate, 4096), done: make(chan struct{})}
	err := netlink.LinkSubscribeWithOptions(w.updates, w.done, netlink.LinkSubscribeOptions{ReceiveBufferSize: 8 << 20})
	if err != nil {
		return nil, err
	}
	if w.left, err = veths(); err != nil {
		w.close()
		return nil, err
	}
	for i := range before {
		delete(w.left, i)
	}
	if len(w.left) != n {
		w.close()
		return nil, fmt.Errorf("%d pods have %d links", n, len(w.left))
	}
	return w, nil
}

func (w *endWatch) close() { close(w.done) }

// last waits until all links are gone, and returns when the last one went.
func (w *endWatch) last(ctx context.Context) (time.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, opTimeout)
	defer cancel()
	for {
		select {
		case u, ok := <-w.updates:
			if !ok {
				return time.Time{}, errors.New("the kernel tells no more about links")
			}
			if u.Header.Type != unix.RTM_DELLINK {
				continue
			}
			if delete(w.left, int(u.Index)); len(w.left) == 0 {
				return time.Now(), nil
			}
		case <-ctx.Done():
			return time.Time{}, fmt.Errorf("waiting until the last of %d links is gone: %w", len(w.left), ctx.Err())
		}
	}
}

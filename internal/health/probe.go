package health

import (
	"context"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/daemon"
	"github.com/berth-net/berth/internal/peers"
)

// way is one way to another node.
type way struct {
	node    string
	path    string // api.PathPod or api.PathNode
	address netip.Addr
}

// result is what is known of a way.
type result struct {
	tried, answered time.Time
	latency         time.Duration
	failures        int
	err             string
}

const (
	// most is how many probes run at once: so many nodes can be silent before others are probed less often.
	most = 64
	// pause is the least time between the beginnings of two probes. It bounds what a large cluster costs each of its nodes:
	// some 25 connections a second that it begins, and as many that others begin to it.
	pause = 20 * time.Millisecond
	// maxError is how many bytes are kept of an error.
	maxError = 200
)

// ways returns all ways, in no order. The caller holds h.mu.
func (h *Health) ways() (all []way) {
	for _, n := range h.others {
		all = append(all, waysTo(n)...)
	}
	return all
}

// waysTo returns the ways to a node.
func waysTo(n peers.Node) (ways []way) {
	for _, a := range n.Health {
		ways = append(ways, way{n.Name, api.PathPod, a})
	}
	for _, a := range n.Addresses {
		ways = append(ways, way{n.Name, api.PathNode, a})
	}
	return ways
}

// forget forgets what is known of the ways to a node that it has no more. The caller holds h.mu.
func (h *Health) forget(was, now peers.Node) {
	ways := waysTo(now)
	for _, w := range waysTo(was) {
		if !slices.Contains(ways, w) {
			delete(h.results, w)
		}
	}
}

// keepProbing probes all ways, one after the other in an order by chance and evenly over the interval, until ctx ends.
func (h *Health) keepProbing(ctx context.Context) {
	places := make(chan struct{}, most)
	var all sync.WaitGroup
	defer all.Wait()
	for ctx.Err() == nil {
		round, gap := h.round()
		if len(round) == 0 {
			daemon.Sleep(ctx, gap, nil)
		}
		for _, w := range round {
			daemon.Sleep(ctx, gap, nil)
			p := h.standing()
			if ctx.Err() != nil {
				return
			}
			if p == nil {
				continue
			}
			places <- struct{}{}
			all.Go(func() {
				defer func() { <-places }()
				h.probe(ctx, p, w)
			})
		}
	}
}

// round returns all ways in the order of the next round, and how long to wait before each.
func (h *Health) round() (ways []way, gap time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	ways = h.ways()
	rand.Shuffle(len(ways), func(i, j int) { ways[i], ways[j] = ways[j], ways[i] })
	gap = max(h.Interval/time.Duration(max(len(ways), 1)), pause)
	h.every = max(h.Interval, gap*time.Duration(len(ways)))
	return ways, gap
}

// probe probes a way once, and notes what became of it.
func (h *Health) probe(ctx context.Context, p *place, w way) {
	began := time.Now()
	var err error
	if w.path == api.PathPod {
		err = h.hello(ctx, p, w.address, w.node)
	} else {
		err = p.ping(ctx, w.address)
	}
	took := time.Since(began)
	h.mu.Lock()
	defer h.mu.Unlock()
	if ctx.Err() != nil || h.place != p { // the error, if there is one, is about this node
		return
	}
	if !slices.Contains(waysTo(h.others[w.node]), w) { // meanwhile the node has gone, or has other addresses
		return
	}
	r := h.results[w]
	if r == nil {
		r = &result{}
		h.results[w] = r
	}
	r.tried = h.Wall()
	if err != nil {
		r.failures++
		r.err = strings.Clone(err.Error()[:min(len(err.Error()), maxError)])
		return
	}
	r.failures, r.err, r.answered, r.latency = 0, "", r.tried, took
}

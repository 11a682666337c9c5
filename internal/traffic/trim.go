package traffic

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/berth-net/berth/internal/daemon"
	"github.com/berth-net/berth/internal/ipam"
	"github.com/berth-net/berth/internal/kernel/conntrack"
	"github.com/berth-net/berth/internal/kinds/flows"
)

// The nftables table limits what a pod opens (kernel/nft/limit.go). It does not see
// closed TCP connections, which a pod can keep in connection tracking by a packet each
// two minutes, or make open ones again. So the agent looks how full connection
// tracking is, and deletes what is too much of a pod's before there is no room for
// others, or no port of the node's address for a destination of the pod's.

const (
	// trimEvery is the time between two looks how full it is: two files are read.
	trimEvery = 2 * time.Second
	// trimRest is how many times as long as going over the table took nobody does so
	// again: where it is full of what is nobody's in particular, a look takes 0.4 s for
	// 262,144 entries.
	trimRest = 20
	// portsRest is trimRest where there is room, but may be no port. A pod with half of
	// the ports needs a second to take the others, if it has opened nothing for half a
	// minute, and else half a minute (nft's dropHasty).
	portsRest = 50
	// trimming is how long one time may take.
	trimming = 30 * time.Second
	// ports is how many ports an address of the node has for a destination, of those
	// that masquerade gives. With fewer entries than that one is free.
	ports = 1<<16 - 1024
)

// KeepTrimmed deletes pods' entries that are too many, whenever connection tracking is
// three quarters full, or has three quarters as many entries as there are ports, until
// ctx ends.
func (t *Traffic) KeepTrimmed(ctx context.Context) {
	var trimmed, failed bool // the last time
	for pause := trimEvery; ; {
		daemon.Sleep(ctx, pause, nil)
		if ctx.Err() != nil {
			return
		}
		begun := time.Now()
		gone, rest, err := t.Trim(ctx)
		pause = max(trimEvery, rest*time.Since(begun))
		if err != nil && !failed && ctx.Err() == nil {
			t.Log.Warn("a pod may fill connection tracking", "err", err)
		}
		if len(gone) > 0 && !trimmed {
			t.Log.Warn("connection tracking, or the ports of masquerade, would have run out: entries of pods that had too many are deleted",
				"pods", len(gone), "such as", gone[:min(len(gone), 5)])
		}
		trimmed, failed = len(gone) > 0, err != nil
	}
}

// trimBounds are how many entries a pod may have when connection tracking has so many, of
// so many that it can have; and for how many times as long as it takes to see to that
// nobody does so again. With rest 0 it is not time to.
func trimBounds(connections, entries, most int) (b conntrack.Bounds, rest time.Duration) {
	if connections == 0 || most == 0 {
		return b, 0
	}
	if entries >= most-most/4 {
		b, rest = conntrack.Bounds{
			Closed: min(2*connections, most/2), // or closed ones of one pod could fill a small table
			All:    2 * connections,
		}, trimRest
	}
	if half := max(connections, ports/2); entries >= ports-ports/4 && half < ports {
		if rest == 0 {
			return conntrack.Bounds{Closed: half, All: half + half/2}, portsRest
		}
		b.Closed, b.All = min(b.Closed, half), min(b.All, half+half/2)
	}
	return b, rest
}

// Trim does that once, if it is time to. It returns whose entries are gone, and how
// many, and what trimBounds says of the time until the next one.
func (t *Traffic) Trim(ctx context.Context) (gone []string, rest time.Duration, err error) {
	connections := t.ground.Config().Connections
	if connections == 0 {
		return nil, 0, nil
	}
	entries, most, err := t.node.Tracked.Load()
	if err != nil {
		return nil, 0, err
	}
	bounds, rest := trimBounds(connections, entries, most)
	if rest == 0 {
		return nil, 0, nil
	}
	all := t.index.All()
	whose := map[netip.Addr]int{}
	for i, e := range all {
		for _, n := range e.Owner.Names {
			if addr, err := ipam.ParseName(n); err == nil {
				whose[addr] = i
			}
		}
	}
	ctx, cancel := context.WithTimeout(ctx, trimming)
	defer cancel()
	begun, total := time.Now(), 0
	fewer, err := t.node.Tracked.Trim(ctx, whose, bounds)
	for i, n := range fewer {
		gone, total = append(gone, fmt.Sprintf("%s: %d", all[i].Record.Key, n)), total+n
	}
	slices.Sort(gone)
	if t.Observe != nil {
		t.Observe(flows.KindName, "trim", time.Since(begun), total, err)
	}
	return gone, rest, err
}

package agent

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/berth-net/berth/internal/ipam"
	"github.com/berth-net/berth/internal/kernel/conntrack"
	"github.com/berth-net/berth/internal/kinds/flows"
)

// The nftables table limits what a pod opens (kernel/nft/limit.go). It does not see
// closed TCP connections, which a pod can keep in connection tracking by a packet each
// two minutes, or make open ones again. So the agent looks how full connection
// tracking is, and deletes what is too much of a pod's before there is no room for
// others.

const (
	// trimEvery is the time between two looks how full it is: two files are read.
	trimEvery = 2 * time.Second
	// trimRest is how many times as long as going over the table took nobody does so
	// again: where it is full of what is nobody's in particular, a look takes 0.4 s for
	// 262,144 entries.
	trimRest = 20
	// trimming is how long one time may take.
	trimming = 30 * time.Second
)

// keepTrimmed deletes pods' entries that are too many, whenever connection tracking is
// three quarters full, until ctx ends.
func (a *Agent) keepTrimmed(ctx context.Context) {
	var trimmed, failed bool // the last time
	for pause := trimEvery; ; {
		sleep(ctx, pause, nil)
		if ctx.Err() != nil {
			return
		}
		begun := time.Now()
		gone, err := a.trim(ctx)
		pause = max(trimEvery, trimRest*time.Since(begun))
		if err != nil && !failed && ctx.Err() == nil {
			a.Log.Warn("a pod may fill connection tracking", "err", err)
		}
		if len(gone) > 0 && !trimmed {
			a.Log.Warn("connection tracking was nearly full: entries of pods that had more than twice their share are deleted",
				"pods", len(gone), "such as", gone[:min(len(gone), 5)])
		}
		trimmed, failed = len(gone) > 0, err != nil
	}
}

// trim does that once, if it is time to. It returns whose entries are gone, and how
// many.
func (a *Agent) trim(ctx context.Context) (gone []string, err error) {
	connections := a.config.Load().Connections
	if connections == 0 {
		return nil, nil
	}
	entries, most, err := a.tracked.Load()
	if err != nil || entries < most-most/4 || most == 0 {
		return nil, err
	}
	all := a.index.all()
	whose := map[netip.Addr]int{}
	for i, e := range all {
		for _, n := range e.owner.Names {
			if addr, err := ipam.ParseName(n); err == nil {
				whose[addr] = i
			}
		}
	}
	ctx, cancel := context.WithTimeout(ctx, trimming)
	defer cancel()
	begun, total := time.Now(), 0
	fewer, err := a.tracked.Trim(ctx, whose, conntrack.Bounds{
		Closed: min(2*connections, most/2), // or closed ones of one pod could fill a small table
		All:    2 * connections,
	})
	for i, n := range fewer {
		gone, total = append(gone, fmt.Sprintf("%s: %d", all[i].record.Key, n)), total+n
	}
	slices.Sort(gone)
	if a.Observe != nil {
		a.Observe(flows.KindName, "trim", time.Since(begun), total, err)
	}
	return gone, err
}

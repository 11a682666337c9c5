package main

import (
	"context"
	"fmt"
)

// The pods of these contestants have limits of bandwidth, both ways. bandwidth measures these
// contestants beside contestants with the same plugins and no limits.
var (
	berthRates = contestant{name: "berth+bandwidth", agent: true, rates: true,
		config: berthConfig(`"pool": "v4", "capabilities": {"bandwidth": true}`)}
	peerRates = contestant{name: "ptp+bandwidth", rates: true, config: func(dir string) string {
		return fmt.Sprintf(`{"type": "ptp", "ipMasq": false, "ipam": %s}, {"type": "bandwidth", "capabilities": {"bandwidth": true}}`,
			hostLocal(dir, "10.206.0.0/15"))
	}}
)

// rates are the limits of a pod that has limits, in bits a second and bits.
var rates = map[string]any{
	"ingressRate": 100_000_000, "ingressBurst": 1_000_000, "egressRate": 100_000_000, "egressBurst": 1_000_000,
}

// bandwidth measures ADD and DEL of pods with limits and of pods without limits, in turns.
func bandwidth(ctx context.Context, b *bench) error {
	plain, peer := b.network(berthName), b.network("ptp")
	if plain == nil || peer == nil {
		return nil
	}
	nets := []*network{plain, peer}
	for _, c := range []contestant{berthRates, peerRates} {
		n, err := newNetwork(c, b.opts, b.dir, b.agent)
		if err != nil {
			return err
		}
		nets = append(nets, n)
	}
	all, err := b.inTurns(ctx, nets, "with limits of bandwidth, one at a time")
	if err != nil {
		return err
	}
	add, _ := all[berthRates.name].add.rounds.ratio(all[berthName].add.rounds)
	del, _ := all[berthRates.name].del.rounds.ratio(all[berthName].del.rounds)
	b.report.atMost("bandwidth: ADD p50 / without", add, 1.15, "x")
	b.report.atMost("bandwidth: DEL p50 / without", del, 1.15, "x")
	return nil
}

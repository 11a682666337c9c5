package main

import "context"

// The pods of this contestant have three networks of Berth's own.
var berthNetworks = contestant{name: "berth+networks", agent: true, config: berthConfig(`"delegates": [
	{"name": "a", "type": "berth-cni", "pool": "v4"}, {"name": "b", "type": "berth-cni", "pool": "v4"}, {"name": "c", "type": "berth-cni", "pool": "v4"}]`)}

// networks measures ADD and DEL of pods with three networks of Berth's own, and of pods with one, in turns.
func networks(ctx context.Context, b *bench) error {
	one := b.network(berthName)
	if one == nil {
		return nil
	}
	three, err := newNetwork(berthNetworks, b.opts, b.dir, b.agent)
	if err != nil {
		return err
	}
	all, err := b.inTurns(ctx, []*network{one, three}, "with three networks of Berth's own, one at a time")
	if err != nil {
		return err
	}
	add, _ := all[berthNetworks.name].add.rounds.ratio(all[berthName].add.rounds)
	del, _ := all[berthNetworks.name].del.rounds.ratio(all[berthName].del.rounds)
	b.report.atMost("three networks: ADD p50 / one", add, 2, "x")
	b.report.atMost("three networks: DEL p50 / one", del, 1.3, "x")
	return nil
}

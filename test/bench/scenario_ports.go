package main

import (
	"context"
	"fmt"
)

// The pods of these contestants have host ports. ports measures these contestants beside contestants
// with the same plugins and no host ports.
var (
	berthPorts = contestant{name: "berth+ports", agent: true, ports: true,
		config: berthConfig(`"pool": "v4", "capabilities": {"portMappings": true}`)}
	peerPorts = contestant{name: "ptp+portmap", ports: true, config: func(dir string) string {
		return fmt.Sprintf(`{"type": "ptp", "ipMasq": false, "ipam": %s}, {"type": "portmap", "capabilities": {"portMappings": true}}`,
			hostLocal(dir, "10.204.0.0/15"))
	}}
)

// A number of pods (holders) keep a number of host ports each (mappings), while other pods, with two
// host ports each, come and go.
const (
	holders  = 10
	mappings = 100
	// firstPort is the first host port of pods that come and go.
	firstPort = 20000
)

// portMappings are the host ports of a pod: n of them, from a number on.
func portMappings(from, n int) []map[string]any {
	list := make([]map[string]any, n)
	for i := range list {
		list[i] = map[string]any{"hostPort": from + i, "containerPort": 80 + i, "protocol": []string{"tcp", "udp"}[i%2]}
	}
	return list
}

// ports measures ADD and DEL of pods with host ports, on a node that has a thousand host ports, and
// of pods without host ports, in turns.
func ports(ctx context.Context, b *bench) error {
	plain, peer := b.network(berthName), b.network("ptp")
	if plain == nil || peer == nil {
		return nil
	}
	nets := []*network{plain, peer}
	for _, c := range []contestant{berthPorts, peerPorts} {
		n, err := newNetwork(c, b.opts, b.dir, b.agent)
		if err != nil {
			return err
		}
		nets = append(nets, n)
	}
	held, err := b.pods.first(holders * 2)
	if err != nil {
		return err
	}
	var standing []*attachment
	for i, n := range nets[2:] {
		for j, p := range held[i*holders : (i+1)*holders] {
			a := n.attachment(p)
			a.rt.CapabilityArgs = map[string]any{"portMappings": portMappings(1000+(i*holders+j)*mappings, mappings)}
			if _, err := a.add(ctx); err != nil {
				return err
			}
			standing = append(standing, a)
		}
	}
	all, err := b.inTurns(ctx, nets, fmt.Sprintf("with two host ports, one at a time, %d on the node", holders*mappings))
	if err != nil {
		return err
	}
	for _, a := range standing {
		if _, err := a.del(ctx); err != nil {
			return err
		}
	}
	add, _ := all[berthPorts.name].add.rounds.ratio(all[berthName].add.rounds)
	del, _ := all[berthPorts.name].del.rounds.ratio(all[berthName].del.rounds)
	b.report.atMost("host ports: ADD p50 / without", add, 1.15, "x")
	b.report.atMost("host ports: DEL p50 / without", del, 1.15, "x")
	return nil
}

// inTurns measures ADD and DEL of networks, in turns, and reports the figures. The first half of
// nets lacks a feature, which the other half has.
func (b *bench) inTurns(ctx context.Context, nets []*network, what string) (map[string]*figures, error) {
	all := make(map[string]*figures)
	for _, n := range nets {
		all[n.name] = new(figures)
	}
	rounds, waves := b.pick(12, 3), 15
	for round := range rounds {
		for i := range nets {
			n := nets[(round+i)%len(nets)]
			ps, err := b.pods.fresh(waves)
			if err != nil {
				return nil, err
			}
			if err := all[n.name].round(ctx, n, ps, width{pods: 1, waves: waves}); err != nil {
				return nil, err
			}
		}
	}
	for _, verb := range []string{"ADD", "DEL"} {
		t := b.report.section(fmt.Sprintf("%s %s: %d rounds of %d", verb, what, rounds, waves),
			"plugin", "p50 ms", "rounds' p50", "p99 ms", "p50 x without")
		for i, n := range nets {
			own := all[n.name].of(verb)
			_, ratio := own.rounds.ratio(all[nets[i%(len(nets)/2)].name].of(verb).rounds)
			t.row(n.name, num(median(own.rounds)), own.rounds.span(), num(percentile(own.each, 99)), ratio)
		}
	}
	return all, nil
}

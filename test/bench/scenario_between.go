package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"time"
)

// The ways between pods that others are compared with.
const (
	bareWay    = "bare veth"
	kindnetWay = "kindnet's way"
	flannelWay = "flannel's way"
)

// compared are those that a table has ratios to.
var compared = []string{bareWay, kindnetWay, flannelWay}

// aboutWays says in the report what the ways are.
const aboutWays = "The nodes are network namespaces that a veth pair joins, and all that a packet passes shares the machine's processors. " +
	"Bare veth is a pair between two pods, without nodes. Routes alone: ptp, host-local, and routes by the nodes' addresses. " +
	"Kindnet's way is that and masquerade by nftables for what leaves the cluster, so that each node tracks connections, as kube-proxy has it do anyway. " +
	"Flannel's way is bridge, host-local, a VXLAN device with fixed entries, and that masquerade. All are built by hand, of plugins, routes and nft"

// between measures what pods of two nodes get of each other: the throughput of one TCP stream, and how long a byte takes there
// and back. The nodes are network namespaces on one segment.
func between(ctx context.Context, b *bench) (err error) {
	if _, err := exec.LookPath("nft"); err != nil {
		b.report.section("From pod to pod of another node").note("Without nft nobody masquerades as kindnet and flannel do: %v", err)
		return nil
	}
	bare, err := b.newBareWay()
	if err != nil {
		return err
	}
	ways := []*way{bare}
	bridge := fmt.Sprintf(`"type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": false, "mtu": %d`, tunnelMTU)
	for _, kind := range []struct {
		pair string
		make func(*nodePair) (*way, error)
	}{
		{"routes", func(p *nodePair) (*way, error) { return b.peerWay(ctx, p, "routes alone", `"type": "ptp"`, nativeWays) }},
		{"kindnet", func(p *nodePair) (*way, error) {
			return b.peerWay(ctx, p, kindnetWay, `"type": "ptp"`, nativeWays, masquerade)
		}},
		{"native", func(p *nodePair) (*way, error) { return b.berthWay(ctx, p, "native") }},
		{"flannel", func(p *nodePair) (*way, error) { return b.peerWay(ctx, p, flannelWay, bridge, tunnelWays, masquerade) }},
		{"vxlan", func(p *nodePair) (*way, error) { return b.berthWay(ctx, p, "vxlan") }},
	} {
		p, err := newNodePair(kind.pair)
		defer func() { err = errors.Join(err, p.close()) }()
		if err != nil {
			return err
		}
		w, err := kind.make(p)
		if err != nil {
			return fmt.Errorf("making %s: %w", kind.pair, err)
		}
		ways = append(ways, w)
	}
	return b.measureWays(ways)
}

// wayFigures has the figures of each round, of one way and one family.
type wayFigures struct {
	gigabyte series // how long a gigabyte takes
	turn     series // p50 of a byte's turns
	turns    []time.Duration
}

// measureWays measures the ways by turns, each family for itself.
func (b *bench) measureWays(ways []*way) error {
	rounds := b.pick(25, 5) // many short ones: other programs' moments then hit all ways alike
	const during = 150 * time.Millisecond
	for family, name := range []string{"IPv4", "IPv6"} {
		all := map[string]*wayFigures{}
		for _, w := range ways {
			all[w.name] = new(wayFigures)
		}
		for round := range rounds {
			for i := range ways {
				w := ways[(round+i)%len(ways)]
				if err := all[w.name].round(w, family, during); err != nil {
					return err
				}
			}
		}
		b.showWays(name, rounds, ways, all)
	}
	return nil
}

// round adds a round.
func (f *wayFigures) round(w *way, family int, during time.Duration) error {
	gigabyte, err := w.stream(w.addrs[family], during)
	if err != nil {
		return err
	}
	took, err := w.turns(w.addrs[family], turnsARound)
	if err != nil {
		return err
	}
	f.gigabyte, f.turn, f.turns = append(f.gigabyte, gigabyte), append(f.turn, percentile(took, 50)), append(f.turns, took...)
	return nil
}

// turnsARound is how often a byte goes there and back in a round.
const turnsARound = 800

func (b *bench) showWays(family string, rounds int, ways []*way, all map[string]*wayFigures) {
	t := b.report.section(fmt.Sprintf("From pod to pod of another node, %s: one TCP stream, and a byte there and back, %d rounds", family, rounds),
		"way", "Gbit/s, median", "least-greatest", "x "+compared[0], "x "+compared[1], "x "+compared[2],
		"byte p50 µs", "p99 µs", "p50 x "+compared[0], "p50 x "+compared[1], "p50 x "+compared[2])
	t.note(aboutWays)
	for _, w := range ways {
		f := all[w.name]
		cells := []string{w.name, gbits(median(f.gigabyte)), gbits(slices.Max(f.gigabyte)) + "-" + gbits(slices.Min(f.gigabyte))}
		for _, base := range compared {
			_, ratio := all[base].gigabyte.ratio(f.gigabyte) // of throughputs
			cells = append(cells, ratio)
		}
		cells = append(cells, micros(median(f.turn)), micros(percentile(f.turns, 99)))
		for _, base := range compared {
			_, ratio := f.turn.ratio(all[base].turn)
			cells = append(cells, ratio)
		}
		t.row(cells...)
	}
	b.judgeWays(family, all)
}

// judgeWays compares Berth with those who do the same.
func (b *bench) judgeWays(family string, all map[string]*wayFigures) {
	for _, pair := range [][2]string{{"native", kindnetWay}, {"vxlan", flannelWay}} {
		mine, theirs := all["berth, "+pair[0]], all[pair[1]]
		// Other programs make no stream faster: the fastest round of each way says most about the way.
		faster := float64(slices.Min(theirs.gigabyte)) / float64(slices.Min(mine.gigabyte))
		longer, _ := mine.turn.ratio(theirs.turn)
		b.report.atLeast(fmt.Sprintf("greatest throughput between nodes, %s, %s / %s", pair[0], family, pair[1]), faster, 0.9, "x")
		b.report.atMost(fmt.Sprintf("a byte between nodes there and back, %s, %s / %s", pair[0], family, pair[1]), longer, 1.1, "x")
	}
}

// gbits writes how many gigabits a second there are if a gigabyte takes so long.
func gbits(gigabyte time.Duration) string { return fmt.Sprintf("%.1f", 8/gigabyte.Seconds()) }

// micros writes a duration in µs.
func micros(d time.Duration) string { return fmt.Sprintf("%.1f", float64(d)/1e3) }

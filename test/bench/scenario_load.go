package main

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// width is one part of load, with a number of pods at once.
type width struct {
	pods   int
	rounds int // each contestant's, in turns
	waves  int // in a round
}

// load measures ADD and DEL through libcni with one, 16 and 250 pods at once.
func load(ctx context.Context, b *bench) error {
	for _, w := range []width{
		{1, b.pick(15, 4), 15},
		{16, b.pick(10, 3), b.pick(4, 2)},
		{250, b.pick(7, 2), 1},
	} {
		b.say("load, %d at once: %d rounds", w.pods, w.rounds)
		if err := b.loadWidth(ctx, w); err != nil {
			return err
		}
	}
	return nil
}

// figures has a contestant's figures for one width.
type figures struct {
	add, del         series          // p50 of each round
	adds, dels       []time.Duration // of all rounds
	addWall, delWall series          // of each wave
}

func (b *bench) loadWidth(ctx context.Context, w width) error {
	ps, err := b.pods.first(w.pods)
	if err != nil {
		return err
	}
	all := make(map[string]*figures)
	for _, n := range b.networks {
		all[n.name] = new(figures)
		if _, err := n.wave(ctx, ps, w.pods); err != nil { // not measured: it warms caches, and makes the bridge
			return err
		}
	}
	for round := range w.rounds {
		for i := range b.networks {
			n := b.networks[(round+i)%len(b.networks)] // so that no contestant is always first
			// For one pod at a time the pods are fresh, as a runtime's are. For many at
			// once, making fresh ones would take longer than the measured part.
			if w.pods == 1 {
				if ps, err = b.pods.fresh(w.waves); err != nil {
					return err
				}
			}
			if err := all[n.name].round(ctx, n, ps, w); err != nil {
				return err
			}
		}
	}
	b.showLoad(w, all)
	b.judgeLoad(w, all)
	return nil
}

// round adds one round of a contestant.
func (f *figures) round(ctx context.Context, n *network, ps []*pod, w width) error {
	var adds, dels []time.Duration
	for i := range w.waves {
		from := i * w.pods % len(ps)
		s, err := n.wave(ctx, ps[from:from+w.pods], w.pods)
		if err != nil {
			return err
		}
		adds, dels = append(adds, s.adds...), append(dels, s.dels...)
		f.addWall, f.delWall = append(f.addWall, s.addWall), append(f.delWall, s.delWall)
	}
	f.add, f.del = append(f.add, percentile(adds, 50)), append(f.del, percentile(dels, 50))
	f.adds, f.dels = append(f.adds, adds...), append(f.dels, dels...)
	return nil
}

func (b *bench) showLoad(w width, all map[string]*figures) {
	head := "One at a time"
	if w.pods > 1 {
		head = fmt.Sprintf("%d at once", w.pods)
	}
	floor := all[floorName]
	for _, verb := range []string{"ADD", "DEL"} {
		columns := []string{"plugin", "p50 ms", "rounds' p50", "p99 ms", "p50 x floor"}
		if w.pods > 1 {
			columns = append(columns, "wall ms", "wall x floor")
		}
		t := b.report.section(fmt.Sprintf("%s, %s: %d rounds of %d", verb, strings.ToLower(head), w.rounds, w.waves*w.pods), columns...)
		for _, n := range b.networks {
			rounds, each, wall := all[n.name].of(verb)
			base, baseWall := series(nil), series(nil)
			if floor != nil {
				base, _, baseWall = floor.of(verb)
			}
			_, ratio := rounds.ratio(base)
			cells := []string{n.name, num(median(rounds)), rounds.span(), num(percentile(each, 99)), ratio}
			if w.pods > 1 {
				_, wallRatio := wall.ratio(baseWall)
				cells = append(cells, num(median(wall)), wallRatio)
			}
			t.row(cells...)
		}
	}
}

// of returns a verb's p50 of each round, all its times, and the waves' walls.
func (f *figures) of(verb string) (rounds series, each []time.Duration, wall series) {
	if verb == "ADD" {
		return f.add, f.adds, f.addWall
	}
	return f.del, f.dels, f.delWall
}

// judgeLoad compares Berth's figures with the targets.
func (b *bench) judgeLoad(w width, all map[string]*figures) {
	floor, berth, wait := all[floorName], all[berthName], all[waitName]
	if floor == nil || berth == nil {
		return
	}
	switch w.pods {
	case 1:
		add, _ := berth.add.ratio(floor.add)
		del, _ := berth.del.ratio(floor.del)
		b.report.atMost("ADD p50 / floor", add, 2.2, "x")
		b.report.atMost("DEL p50 / floor", del, 1.7, "x")
		if peer, name := fastest(b.networks, all); peer != nil {
			faster, _ := peer.del.ratio(berth.del)
			b.report.atLeast(fmt.Sprintf("DEL p50, times faster than %s", name), faster, 8, "x")
			if wait != nil {
				slower, _ := wait.del.ratio(peer.del)
				b.report.atMost(fmt.Sprintf(`DEL p50 with "wait" / %s`, name), slower, 1, "x")
			}
		}
	case 250:
		add, _ := berth.addWall.ratio(floor.addWall)
		del, _ := berth.delWall.ratio(floor.delWall)
		b.report.atMost("250 ADDs at once, wall / floor", add, 1.8, "x")
		b.report.atMost("250 DELs at once, wall / floor", del, 1.5, "x")
	}
}

// fastest returns the reference plugin with the fastest DEL.
func fastest(networks []*network, all map[string]*figures) (best *figures, name string) {
	for _, n := range networks {
		f := all[n.name]
		if n.agent || n.name == floorName {
			continue
		}
		if best == nil || median(f.del) < median(best.del) {
			best, name = f, n.name
		}
	}
	return best, name
}

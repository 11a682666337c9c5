package main

import (
	"context"
	"fmt"
	"slices"
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
type figures struct{ add, del verbFigures }

// verbFigures has the figures of one verb.
type verbFigures struct {
	rounds series          // p50 of each round
	each   []time.Duration // of all rounds
	wall   series          // of each wave
	cpu    time.Duration   // the agent's processor time, of all waves
	exec   time.Duration   // the plugins' processor time, of all waves
}

// take adds a round: how long each call took, how long each wave took, and the processor time of the agent
// and of the plugins.
func (v *verbFigures) take(each []time.Duration, walls series, cpu, exec time.Duration) {
	v.rounds, v.each = append(v.rounds, percentile(each, 50)), append(v.each, each...)
	v.wall, v.cpu, v.exec = append(v.wall, walls...), v.cpu+cpu, v.exec+exec
}

// perCall returns a part of one call of a total, in ms; "" if there is none, as where there is no agent.
func (v *verbFigures) perCall(total time.Duration) string {
	if total == 0 {
		return ""
	}
	return num(total / time.Duration(len(v.each)))
}

func (b *bench) loadWidth(ctx context.Context, w width) error {
	ps, err := b.pods.first(w.pods)
	if err != nil {
		return err
	}
	all := make(map[string]*figures)
	for _, n := range b.networks {
		all[n.name] = new(figures)
		if _, err := n.wave(ctx, ps, w.pods); err != nil { // this wave is not measured: it warms caches, and makes the bridge
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
	var addWalls, delWalls series
	var addCPU, delCPU, addExec, delExec time.Duration
	for i := range w.waves {
		from := i * w.pods % len(ps)
		s, err := n.wave(ctx, ps[from:from+w.pods], w.pods)
		if err != nil {
			return err
		}
		adds, dels = append(adds, s.adds...), append(dels, s.dels...)
		addWalls, delWalls = append(addWalls, s.addWall), append(delWalls, s.delWall)
		addCPU, delCPU = addCPU+s.addCPU, delCPU+s.delCPU
		addExec, delExec = addExec+s.addExec, delExec+s.delExec
	}
	f.add.take(adds, addWalls, addCPU, addExec)
	f.del.take(dels, delWalls, delCPU, delExec)
	return nil
}

func (b *bench) showLoad(w width, all map[string]*figures) {
	head := "One at a time"
	if w.pods > 1 {
		head = fmt.Sprintf("%d at once", w.pods)
	}
	for _, verb := range []string{"ADD", "DEL"} {
		columns := []string{"plugin", "p50 ms", "rounds' p50", "p99 ms", "p50 x " + bareName, "p50 x " + floorName}
		if w.pods > 1 {
			columns = append(columns, "wall ms", "wall x "+bareName, "wall x "+floorName, "agent's CPU ms each", "plugins' CPU ms each")
		}
		t := b.report.section(fmt.Sprintf("%s, %s: %d rounds of %d", verb, strings.ToLower(head), w.rounds, w.waves*w.pods), columns...)
		for _, n := range b.networks {
			v := all[n.name].of(verb)
			cells := []string{n.name, num(median(v.rounds)), v.rounds.span(), num(percentile(v.each, 99))}
			for _, floor := range floors {
				_, ratio := v.rounds.ratio(all[floor].of(verb).rounds)
				cells = append(cells, ratio)
			}
			if w.pods > 1 {
				cells = append(cells, num(median(v.wall)))
				for _, floor := range floors {
					_, ratio := v.wall.ratio(all[floor].of(verb).wall)
					cells = append(cells, ratio)
				}
				cells = append(cells, v.perCall(v.cpu), v.perCall(v.exec))
			}
			t.row(cells...)
		}
	}
}

// of returns a verb's figures; none if f is nil.
func (f *figures) of(verb string) verbFigures {
	switch {
	case f == nil:
		return verbFigures{}
	case verb == "ADD":
		return f.add
	}
	return f.del
}

// judgeLoad compares Berth's figures with the targets (issue 11, section 2).
func (b *bench) judgeLoad(w width, all map[string]*figures) {
	bare, berth, wait := all[bareName], all[berthName], all[waitName]
	if bare == nil || berth == nil {
		return
	}
	switch w.pods {
	case 1:
		add, _ := berth.add.rounds.ratio(bare.add.rounds)
		del, _ := berth.del.rounds.ratio(bare.del.rounds)
		b.report.atMost("ADD p50 / bare", add, 2, "x")
		b.report.atMost("DEL p50 / bare", del, 1.5, "x")
		if peer, name := fastest(b.networks, all); peer != nil {
			faster, _ := peer.del.rounds.ratio(berth.del.rounds)
			b.report.atLeast(fmt.Sprintf("DEL p50, times faster than %s", name), faster, 8, "x")
			if wait != nil {
				slower, _ := wait.del.rounds.ratio(peer.del.rounds)
				b.report.atMost(fmt.Sprintf(`DEL p50 with "wait" / %s`, name), slower, 1, "x")
			}
		}
	case 250:
		add, _ := berth.add.wall.ratio(bare.add.wall)
		del, _ := berth.del.wall.ratio(bare.del.wall)
		b.report.atMost("250 ADDs at once, wall / bare", add, 1.4, "x")
		b.report.atMost("250 DELs at once, wall / bare", del, 1.4, "x")
		b.report.atMost("agent's CPU an ADD, 250 at once", ms(berth.add.cpu)/float64(len(berth.add.each)), 1.2, "ms")
		b.report.atMost("agent's CPU a DEL, 250 at once", ms(berth.del.cpu)/float64(len(berth.del.each)), 0.8, "ms")
		b.report.atMost("agent's CPU an ADD, 250 at once / a bare plugin's", float64(berth.add.cpu)/float64(bare.add.exec), 0.8, "x")
		b.report.atMost("agent's CPU a DEL, 250 at once / a bare plugin's", float64(berth.del.cpu)/float64(bare.del.exec), 0.5, "x")
	}
}

// fastest returns the reference plugin with the fastest DEL.
func fastest(networks []*network, all map[string]*figures) (best *figures, name string) {
	for _, n := range networks {
		f := all[n.name]
		if n.agent || slices.Contains(floors, n.name) {
			continue
		}
		if best == nil || median(f.del.rounds) < median(best.del.rounds) {
			best, name = f, n.name
		}
	}
	return best, name
}

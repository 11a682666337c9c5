package main

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// The scale stage's pods beside those that fill the node.
const (
	measured = 15  // attached and detached once in each round
	spare    = 256 // attached while others are deleted
)

// scale measures how the times of ADD and DEL grow with the number of attachments on the
// node. Since it takes long to fill a node, this stage also measures what needs a full node:
// the agent's API without execs, and the agent's restart.
func scale(ctx context.Context, b *bench) error {
	t := b.report.section("ADD and DEL one at a time, with attachments on the node",
		"plugin", "attachments", "ADD p50 ms", "rounds' p50", "ADD x floor", "DEL p50 ms", "rounds' p50", "DEL x floor")
	if n := b.network("ptp"); n != nil && !b.opts.quick {
		if err := b.scalePeer(ctx, t, n, []int{10, 1000}); err != nil {
			return err
		}
	}
	if b.agent == nil || b.network(berthName) == nil {
		return nil
	}
	return b.scaleBerth(ctx, t, []int{10, b.pick(1000, 200), b.pick(5000, 1000)})
}

// scalePeer fills the node through the plugin itself.
func (b *bench) scalePeer(ctx context.Context, t *table, n *network, levels []int) error {
	var attached []*attachment
	for _, level := range levels {
		ps, err := b.pods.first(level)
		if err != nil {
			return err
		}
		var more []*attachment
		for _, p := range ps[len(attached):] {
			more = append(more, n.attachment(p))
		}
		if _, _, err := together(apiClients, more, func(a *attachment) (time.Duration, error) { return a.add(ctx) }); err != nil {
			return err
		}
		attached = append(attached, more...)
		if _, err := b.level(ctx, t, n, fmt.Sprint(level)); err != nil {
			return err
		}
	}
	_, _, err := together(apiClients, attached, func(a *attachment) (time.Duration, error) { return a.del(ctx) })
	if err != nil {
		return err
	}
	return settle(b.pods.kept)
}

// scaleBerth fills the node through the agent's API.
func (b *bench) scaleBerth(ctx context.Context, t *table, levels []int) error {
	n, top := b.network(berthName), levels[len(levels)-1]
	b.say("making %d network namespaces", spare+top)
	ps, err := b.pods.first(spare + top)
	if err != nil {
		return err
	}
	busy := ps[spare:]
	var atLevel []levelFigures
	var resident []string
	filled := 0
	for _, level := range levels {
		if _, err := b.agent.attach(ctx, busy[filled:level]); err != nil {
			return err
		}
		filled = level
		size, err := b.agent.Resident()
		if err != nil {
			return err
		}
		resident = append(resident, fmt.Sprintf("%s MB with %d", mb(size), level))
		b.say("scale: %d attachments", level)
		f, err := b.level(ctx, t, n, fmt.Sprint(level))
		if err != nil {
			return err
		}
		atLevel = append(atLevel, f)
	}
	t.note("Berthd, which the stages before have used too, has a resident memory of %s attachments", strings.Join(resident, ", "))
	alone, err := b.pace(ps[:spare], fmt.Sprintf("on a node with %d attachments", top))
	if err != nil {
		return err
	}
	if err := b.restarts(ctx, top, alone); err != nil {
		return err
	}
	if err := b.throughput(ctx, ps[:spare], busy, levels[0], alone); err != nil {
		return err
	}
	title := fmt.Sprintf("%d, and the namespaces of %d", levels[0], top)
	alike, err := b.level(ctx, t, n, title)
	if err != nil {
		return err
	}
	b.judgeLevels(t, levels, atLevel, alike)
	if _, err := b.agent.detach(ctx, busy[:levels[0]]); err != nil {
		return err
	}
	if err := settle(ps); err != nil {
		return err
	}
	_, err = b.agent.Berth(ctx, "audit")
	return err
}

// levelFigures has the p50s of rounds, for a plugin and for the floor.
type levelFigures struct{ add, del, floorAdd, floorDel series }

// level measures a plugin and the floor in turns on the node as it is, and adds a row to a
// table.
func (b *bench) level(ctx context.Context, t *table, n *network, title string) (levelFigures, error) {
	var f levelFigures
	floor := b.network(floorName)
	for range b.pick(12, 4) {
		ps, err := b.pods.fresh(measured)
		if err != nil {
			return f, err
		}
		if floor != nil {
			add, del, err := floor.pairs(ctx, ps)
			if err != nil {
				return f, err
			}
			f.floorAdd, f.floorDel = append(f.floorAdd, add), append(f.floorDel, del)
		}
		add, del, err := n.pairs(ctx, ps)
		if err != nil {
			return f, err
		}
		f.add, f.del = append(f.add, add), append(f.del, del)
	}
	_, addRatio := f.add.ratio(f.floorAdd)
	_, delRatio := f.del.ratio(f.floorDel)
	t.row(n.name, title, num(median(f.add)), f.add.span(), addRatio, num(median(f.del)), f.del.span(), delRatio)
	return f, nil
}

// pairs attaches and detaches pods one after another, and returns the p50s.
func (n *network) pairs(ctx context.Context, ps []*pod) (add, del time.Duration, err error) {
	var adds, dels []time.Duration
	for i := range ps {
		s, err := n.wave(ctx, ps[i:i+1], 1)
		if err != nil {
			return 0, 0, err
		}
		adds, dels = append(adds, s.adds...), append(dels, s.dels...)
	}
	return percentile(adds, 50), percentile(dels, 50), nil
}

// judgeLevels compares the fullest node with the emptiest, and with one that has as many network namespaces
// (alike): these alone make the kernel slower.
func (b *bench) judgeLevels(t *table, levels []int, at []levelFigures, alike levelFigures) {
	first, last, top := at[0], at[len(at)-1], levels[len(levels)-1]
	slower := float64(median(last.add)-median(first.add)) / 1e6
	b.report.atMost(fmt.Sprintf("ADD p50 with %d attachments, above ADD p50 with %d", top, levels[0]), slower, 0.5, "ms")
	b.report.atMost(fmt.Sprintf("ADD p50 with %d attachments / with %d, and the namespaces of %d", top, levels[0], top),
		float64(median(last.add))/float64(median(alike.add)), 1.1, "x")
	b.report.atMost(fmt.Sprintf("DEL p50 with %d attachments / with %d", top, levels[0]),
		float64(median(last.del))/float64(median(first.del)), 1.1, "x")
	if b.network(floorName) != nil {
		t.note("On the nodes with the fewest and the most attachments, the floor's ADD takes %s and %s ms, and its DEL %s and %s ms",
			num(median(first.floorAdd)), num(median(last.floorAdd)), num(median(first.floorDel)), num(median(last.floorDel)))
	}
}

// restarts kills the agent with all attachments on the node and starts it.
func (b *bench) restarts(ctx context.Context, attached int, alone pace) error {
	var took series
	for range b.pick(5, 2) {
		if err := b.agent.Kill(); err != nil {
			return err
		}
		begun := time.Now()
		if err := b.agent.Start(ctx); err != nil {
			return err
		}
		took = append(took, time.Since(begun))
		if _, err := b.agent.Berth(ctx, "status"); err != nil {
			return err
		}
	}
	t := b.report.section("Restart after SIGKILL, until requests are served", "attachments", "restarts", "median s", "least-greatest ms")
	t.row(fmt.Sprint(attached), fmt.Sprint(len(took)), fmt.Sprintf("%.3f", median(took).Seconds()), took.span())
	b.report.atMost(fmt.Sprintf("restart with %d attachments", attached), median(took).Seconds(), 0.4, "s")
	b.report.atMost(fmt.Sprintf("restart with %d attachments / a list of their links by the kernel alone", attached),
		float64(median(took))/float64(median(alone.list)), 4, "x")
	return nil
}

package main

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// deleted is how many pods the stage "beside" deletes at once while it measures ADDs.
const deleted = 250

// besides has the figures of ADDs that run beside DELs.
type besides struct {
	table *table
	above []time.Duration // for each visit, how far the p99 of ADD beside DELs is above the p99 on an idle node
}

// besideTable returns the table for the figures.
func (b *bench) besideTable() *table {
	if b.besides.table == nil {
		b.besides.table = b.report.section(fmt.Sprintf("ADD one at a time while %d DELs are in flight", deleted),
			"by", "idle p50 ms", "idle p99 ms", "with DELs p50 ms", "with DELs p99 ms", "p99 above idle ms", "ADDs with DELs")
	}
	return b.besides.table
}

// beside measures ADDs one at a time while 250 DELs are in flight, in network namespaces
// that stay. beside uses the agent's API, so that only the agent and the kernel affect the
// figures. A run visits this stage several times, far apart, because one visit takes only
// ten seconds, in which a shared machine may be busy.
func beside(ctx context.Context, b *bench) error {
	ps, err := b.pods.first(2 * deleted)
	if err != nil {
		return err
	}
	above, err := b.besideRow(ctx, b.besideTable(), "berth, the agent's API", ps, verbs{
		add:  func(p *pod) (time.Duration, error) { return b.agent.post(ctx, p) },
		del:  func(p *pod) (time.Duration, error) { return b.agent.delete(ctx, p) },
		done: func() error { return b.agent.idle(ctx, apiNetwork) },
	})
	b.besides.above = append(b.besides.above, above)
	return err
}

// besideExecs judges all figures of beside. besideExecs also measures ADDs beside DELs that, as with
// a runtime, execute the plugins. Then 250 processes compete with the ADD.
func besideExecs(ctx context.Context, b *bench) error {
	if all := b.besides.above; len(all) > 0 {
		b.report.atMost(fmt.Sprintf("ADD p99 while %d DELs are in flight, above p99 when idle", deleted), ms(median(all)), 20, "ms")
	}
	ps, err := b.pods.first(2 * deleted)
	if err != nil {
		return err
	}
	for _, name := range []string{berthName, "ptp", floorName} {
		n := b.network(name)
		if n == nil {
			continue
		}
		made := map[*pod]*attachment{}
		for _, p := range ps {
			made[p] = n.attachment(p)
		}
		if _, err := b.besideRow(ctx, b.besideTable(), name+", execs", ps, verbs{
			add:  func(p *pod) (time.Duration, error) { return made[p].add(ctx) },
			del:  func(p *pod) (time.Duration, error) { return made[p].del(ctx) },
			done: func() error { return n.idle(ctx) },
		}); err != nil {
			return err
		}
	}
	return nil
}

// verbs are one way to attach and detach. done waits until no work is left.
type verbs struct {
	add, del func(*pod) (time.Duration, error)
	done     func() error
}

// besideRow measures one way to attach and detach, and returns how far the p99 of ADD beside DELs is
// above the p99 on an idle node.
func (b *bench) besideRow(ctx context.Context, t *table, title string, ps []*pod, v verbs) (above time.Duration, err error) {
	leaving, coming := ps[:deleted], ps[deleted:]
	var idle, beside []time.Duration
	for range b.pick(8, 2) {
		if _, _, err := together(apiClients, leaving, v.add); err != nil {
			return 0, err
		}
		alone := coming[:deleted/10]
		took, _, err := together(1, alone, v.add)
		if err != nil {
			return 0, err
		}
		idle = append(idle, took...)
		ended := make(chan error, 1)
		go func() {
			_, _, err := together(deleted, leaving, v.del)
			if err == nil {
				err = v.done()
			}
			ended <- err
		}()
		used := len(alone)
		for going := true; going && used < len(coming); {
			took, err := v.add(coming[used])
			if err != nil {
				return 0, errors.Join(err, <-ended)
			}
			used++
			beside = append(beside, took)
			select {
			case err := <-ended:
				if err != nil {
					return 0, err
				}
				going = false
				ended <- nil
			default:
			}
		}
		if err := <-ended; err != nil {
			return 0, err
		}
		if _, _, err := together(apiClients, coming[:used], v.del); err != nil {
			return 0, err
		}
		if err := v.done(); err != nil {
			return 0, err
		}
		if err := settle(ps); err != nil {
			return 0, err
		}
	}
	above = percentile(beside, 99) - percentile(idle, 99)
	t.row(title, num(percentile(idle, 50)), num(percentile(idle, 99)), num(percentile(beside, 50)), num(percentile(beside, 99)),
		num(above), fmt.Sprint(len(beside)))
	return above, nil
}

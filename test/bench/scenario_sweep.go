package main

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// sweep measures the agent's own sweeps on a full node of which nothing differs,
// and audits, which list all links anew as a sweep does only every ten minutes:
// their processor time in the agent, the kernel's part included, and how long
// they keep others from changing a link.
func sweep(ctx context.Context, b *bench) error {
	full := b.pick(5000, 1000)
	b.say("making %d network namespaces", full)
	ps, err := b.pods.first(full)
	if err != nil {
		return err
	}
	if _, err := b.agent.attach(ctx, ps); err != nil {
		return err
	}
	if err := b.audit(ctx, full); err != nil { // the first look makes room for all others
		return err
	}
	rounds := b.pick(20, 5)
	idle, err := b.changing(ctx, func() error { return sleepFor(ctx, time.Duration(rounds)*sweepEvery) })
	if err != nil {
		return err
	}
	t := b.report.section("A look at all attachments, of which none differs",
		"attachments", "look", "CPU ms, median", "least-greatest ms", "a link's change meanwhile: p50 ms", "p99 ms", "a second's longest, median", "least-greatest ms")
	show := func(look, spent, span string, waits stalls) {
		t.row(fmt.Sprint(full), look, spent, span, num(percentile(waits.lock, 50)), num(percentile(waits.lock, 99)),
			num(median(waits.seconds())), waits.seconds().span())
	}
	show("none", "", "", idle)
	var sweeps, audits []time.Duration
	swept, err := b.changing(ctx, func() (err error) { sweeps, err = b.agent.sweeps(ctx, rounds); return err })
	if err != nil {
		return err
	}
	show("sweep", num(median(sweeps)), series(sweeps).span(), swept)
	audited, err := b.changing(ctx, func() error {
		for range rounds {
			_, spent, err := b.agent.spends(func() (f apiFigures, err error) { return f, b.audit(ctx, full) })
			if err != nil {
				return err
			}
			audits = append(audits, spent)
		}
		return nil
	})
	if err != nil {
		return err
	}
	show("audit, or a sweep that lists the links", num(median(audits)), series(audits).span(), audited)
	b.report.atMost(fmt.Sprintf("CPU of a sweep of %d attachments", full), median(sweeps).Seconds()*1e3, 150, "ms")
	b.report.atMost("longest wait of another's change of a link in a second of sweeps or audits",
		ms(max(median(swept.seconds()), median(audited.seconds()))), 20, "ms")
	if _, err := b.agent.detach(ctx, ps); err != nil {
		return err
	}
	if err := b.agent.idle(ctx, apiNetwork); err != nil {
		return err
	}
	return settle(ps)
}

// audit is an audit of a node with so many attachments, that finds nothing.
func (b *bench) audit(ctx context.Context, full int) error {
	found, err := b.agent.API.Audit(ctx)
	if err != nil {
		return err
	}
	if len(found.Findings) > 0 || found.Owners < full {
		return fmt.Errorf("an audit of %d owners finds %d things", found.Owners, len(found.Findings))
	}
	return nil
}

// changing returns what changes of an idle link take while f runs.
func (b *bench) changing(ctx context.Context, f func() error) (stalls, error) {
	p, err := startProbe(ctx, b.agent, nil)
	if err != nil {
		return stalls{}, err
	}
	failed := f()
	seen, err := p.stop(ctx)
	return seen, errors.Join(failed, err)
}

func sleepFor(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// deleted is how many pods are deleted at once beside the ADDs of beside.
const deleted = 250

// beside measures ADD one at a time while 250 DELs are in flight, in network
// namespaces that stay: over the agent's API, where nothing but the agent and
// the kernel is in the way, and as a runtime does it, by execs of the plugins,
// where 250 processes are.
func beside(ctx context.Context, b *bench) error {
	t := b.report.section(fmt.Sprintf("ADD one at a time while %d DELs are in flight", deleted),
		"by", "idle p50 ms", "idle p99 ms", "beside p50 ms", "beside p99 ms", "p99 above idle ms", "ADDs beside")
	ps, err := b.pods.first(2 * deleted)
	if err != nil {
		return err
	}
	if b.agent != nil {
		above, err := b.besideRow(ctx, t, "berth, the agent's API", ps, verbs{
			add:  func(p *pod) (time.Duration, error) { return b.agent.post(ctx, p) },
			del:  func(p *pod) (time.Duration, error) { return b.agent.delete(ctx, p) },
			done: func() error { return b.agent.idle(ctx, apiNetwork) },
		})
		if err != nil {
			return err
		}
		b.report.atMost(fmt.Sprintf("ADD p99 while %d DELs are in flight, above idle", deleted), above.Seconds()*1e3, 20, "ms")
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
		if _, err := b.besideRow(ctx, t, name+", execs", ps, verbs{
			add:  func(p *pod) (time.Duration, error) { return made[p].add(ctx) },
			del:  func(p *pod) (time.Duration, error) { return made[p].del(ctx) },
			done: func() error { return n.idle(ctx) },
		}); err != nil {
			return err
		}
	}
	return nil
}

// verbs are one way to attach and detach. done waits until nothing is left to
// be done.
type verbs struct {
	add, del func(*pod) (time.Duration, error)
	done     func() error
}

// besideRow measures one way, and returns how far the p99 of ADD is above that
// on an idle node.
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

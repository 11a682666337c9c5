package main

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// sweep measures the agent's own sweeps on a full node on which nothing differs. It also
// measures audits, which list all links anew; a sweep does so only every ten minutes. It
// measures the agent's processor time, including the kernel's part, and for how long sweeps
// and audits keep others from changing a link.
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
	if err := b.audit(ctx, full); err != nil { // the first audit allocates the memory that the others use
		return err
	}
	rounds := b.pick(20, 5)
	idle, err := b.changing(ctx, func() error { return sleepFor(ctx, time.Duration(rounds)*sweepEvery) })
	if err != nil {
		return err
	}
	t := b.report.section("Sweeps and audits that find no difference",
		"attachments", "what runs", "CPU ms, median", "least-greatest ms", "change of a link: p50 ms", "p99 ms", "longest in a second, median", "least-greatest ms")
	alone, err := b.pace(nil, "")
	if err != nil {
		return err
	}
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
	b.report.atMost(fmt.Sprintf("CPU of a sweep of %d attachments / of a list of their links by the kernel alone", full),
		float64(median(sweeps))/float64(median(alone.listCPU)), 1, "x")
	b.report.atMost("longest wait to change a link in a second of sweeps or audits",
		ms(max(median(swept.seconds()), median(audited.seconds()))), 20, "ms")
	if _, err := b.agent.detach(ctx, ps); err != nil {
		return err
	}
	if err := b.agent.idle(ctx, apiNetwork); err != nil {
		return err
	}
	return settle(ps)
}

// audit makes an audit of a node with full attachments, which has to find nothing.
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

// changing returns how long changes of an idle link take while f runs.
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

package main

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// throughput deletes all but keep attachments over the agent's API, as fast as the agent
// answers, several times, and measures how long others have to wait meanwhile. At its
// beginning all of busy is attached, at its end only busy[:keep].
func (b *bench) throughput(ctx context.Context, spare, busy []*pod, keep int, alone pace) error {
	var adds, dels, gone, midLock []float64
	var worst stalls // of all rounds: a target that says "longest" holds for each of them
	quiet, err := b.quiet(ctx, spare)
	if err != nil {
		return err
	}
	t := b.report.section(fmt.Sprintf("The agent's API without an exec, %d requests at once", apiClients),
		"round", "ADD/s", "ADD p50 ms", "ADD p99 ms", "agent's CPU ms an ADD",
		"DEL/s answered", "DEL p50 ms", "DEL p99 ms", "DEL/s until links are gone", "agent's CPU ms a DEL")
	s := b.report.section("How long others wait while the API deletes links",
		"when", "change of another link p50 ms", "p99 ms", "worst ms", "ADD p50 ms", "p99 ms", "worst ms")
	s.row(append([]string{"quiet"}, quiet.cells()...)...)
	if err := b.serial(ctx, spare[:b.pick(128, 32)]); err != nil {
		return err
	}
	rest := busy[keep:]
	for round := range b.pick(3, 1) {
		b.say("throughput, round %d: %d attachments", round+1, len(rest))
		d, err := b.drain(ctx, spare, rest)
		if err != nil {
			return err
		}
		added, addCPU, err := b.agent.spends(func() (apiFigures, error) { return b.agent.attach(ctx, rest) })
		if err != nil {
			return err
		}
		each := func(cpu time.Duration) string { return num(cpu / time.Duration(len(rest))) }
		t.row(fmt.Sprint(round+1),
			fmt.Sprintf("%.0f", perSecond(len(rest), added.wall)), num(percentile(added.took, 50)), num(percentile(added.took, 99)), each(addCPU),
			fmt.Sprintf("%.0f", perSecond(len(rest), d.answered.wall)), num(percentile(d.answered.took, 50)), num(percentile(d.answered.took, 99)),
			fmt.Sprintf("%.0f", perSecond(len(rest), d.gone)), each(d.cpu))
		s.row(append([]string{fmt.Sprintf("round %d", round+1)}, d.stalls.cells()...)...)
		adds, dels = append(adds, perSecond(len(rest), added.wall)), append(dels, perSecond(len(rest), d.answered.wall))
		gone = append(gone, perSecond(len(rest), d.gone))
		midLock = append(midLock, ms(percentile(d.stalls.lock, 50)))
		worst.lock, worst.add = append(worst.lock, d.stalls.lock...), append(worst.add, d.stalls.add...)
	}
	b.report.atLeast("DELs a second by the API, answered", median(dels), 1500, "/s")
	b.report.atLeast("DELs a second by the API, until the links are gone", median(gone), 1000, "/s")
	b.report.atMost("median wait to change another link while the API deletes links", median(midLock), 1, "ms")
	b.report.atMost("longest wait to change another link while the API deletes links", ms(slices.Max(worst.lock)), 20, "ms")
	b.report.atMost("longest ADD while the API deletes links, above an idle ADD's p50", ms(slices.Max(worst.add))-ms(percentile(quiet.add, 50)), 20, "ms")
	alone.judge(b.report, gone, worst, percentile(quiet.add, 50))
	t.note("Without execs the agent answers %.0f ADDs/s and %.0f DELs/s", median(adds), median(dels))
	if _, err := b.drain(ctx, spare, rest); err != nil {
		return err
	}
	return nil
}

// serial measures requests one at a time, while the agent has nothing else to do.
func (b *bench) serial(ctx context.Context, ps []*pod) error {
	var adds, dels []time.Duration
	for _, p := range ps {
		add, err := b.agent.post(ctx, p)
		if err != nil {
			return err
		}
		del, err := b.agent.delete(ctx, p)
		if err != nil {
			return err
		}
		adds, dels = append(adds, add), append(dels, del)
		if err := b.agent.idle(ctx, apiNetwork); err != nil {
			return err
		}
	}
	t := b.report.section("The agent's API without an exec, one request at a time, on a full node", "request", "p50 ms", "p99 ms")
	t.row("ADD", num(percentile(adds, 50)), num(percentile(adds, 99)))
	t.row("DEL", num(percentile(dels, 50)), num(percentile(dels, 99)))
	return settle(ps)
}

func ms(d time.Duration) float64 { return float64(d) / 1e6 }

// drained says how long it took to delete many attachments.
type drained struct {
	answered apiFigures
	gone     time.Duration // until no link was left
	cpu      time.Duration // the agent's processor time until then
	stalls   stalls
}

// drain deletes the attachments of pods and waits until their links are gone.
func (b *bench) drain(ctx context.Context, spare, ps []*pod) (drained, error) {
	p, err := startProbe(ctx, b.agent, spare)
	if err != nil {
		return drained{}, err
	}
	begun := time.Now()
	answered, cpu, err := b.agent.spends(func() (apiFigures, error) {
		figures, err := b.agent.detach(ctx, ps)
		if err != nil {
			return figures, err
		}
		return figures, settle(ps)
	})
	gone := time.Since(begun)
	stalls, stopErr := p.stop(ctx)
	if err != nil {
		return drained{}, err
	}
	return drained{answered, gone, cpu, stalls}, stopErr
}

// quiet returns what a probe measures while nothing else happens.
func (b *bench) quiet(ctx context.Context, spare []*pod) (stalls, error) {
	p, err := startProbe(ctx, b.agent, spare)
	if err != nil {
		return stalls{}, err
	}
	select {
	case <-time.After(2 * time.Second): // the probe needs some time in which nothing happens
	case <-ctx.Done():
	}
	return p.stop(ctx)
}

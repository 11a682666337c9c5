package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/berth-net/berth/internal/root"
)

// history measures what the history of pods that are gone costs a DEL. An agent that keeps no
// history takes turns with the agent that keeps 10,000 records, which is the default.
func history(ctx context.Context, b *bench) error {
	dir := filepath.Join(b.dir, "node-forgetful")
	file := root.Dir(dir).Config()
	if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte("history: {records: 0}\n"), 0o644)); err != nil {
		return err
	}
	forgetful, err := startAgent(ctx, b.opts.bin, dir, []string{"v4=10.96.0.0/12"})
	if err != nil {
		return err
	}
	defer forgetful.Stop()
	agents := []*agent{b.agent, forgetful}
	took, spent := make([]series, len(agents)), make([]series, len(agents))
	var each [2][]time.Duration
	rounds, count := b.pick(20, 4), b.pick(250, 50)
	ps, err := b.pods.first(count)
	if err != nil {
		return err
	}
	for round := range rounds {
		for turn := range agents {
			i := (round + turn) % len(agents)
			dels, cpu, err := oneByOne(ctx, agents[i], ps)
			if err != nil {
				return err
			}
			took[i], spent[i] = append(took[i], percentile(dels, 50)), append(spent[i], cpu/time.Duration(count))
			each[i] = append(each[i], dels...)
		}
	}
	t := b.report.section(fmt.Sprintf("DEL by the agent's API, one at a time, with and without the history: %d rounds of %d", rounds, count),
		"history", "p50 ms", "rounds' p50", "p99 ms", "p50 x without", "agent's CPU ms a DEL", "CPU x without")
	for i, name := range []string{"10,000 records", "none"} {
		_, slower := took[i].ratio(took[1])
		_, more := spent[i].ratio(spent[1])
		t.row(name, num(median(took[i])), took[i].span(), num(percentile(each[i], 99)), slower, num(median(spent[i])), more)
	}
	slower, _ := took[0].ratio(took[1])
	b.report.atMost("DEL p50 with the history / without", slower, 1.03, "x")
	return nil
}

// oneByOne attaches pods by the agent's API, and deletes them one at a time. It returns how
// long each DEL took, and the agent's processor time for all of them, until their links were
// gone.
func oneByOne(ctx context.Context, a *agent, ps []*pod) ([]time.Duration, time.Duration, error) {
	if _, err := a.attach(ctx, ps); err != nil {
		return nil, 0, err
	}
	figures, cpu, err := a.spends(func() (f apiFigures, err error) {
		f.took, f.wall, err = together(1, ps, func(p *pod) (time.Duration, error) { return a.delete(ctx, p) })
		return f, errors.Join(err, settle(ps))
	})
	return figures.took, cpu, err
}

package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// footprint measures the sizes of programs, and how long it takes to execute a plugin.
func footprint(ctx context.Context, b *bench) error {
	t := b.report.section("Programs", "program", "size MB", "exec of VERSION p50 ms", "x empty")
	type program struct {
		name, path string
		plugin     bool
		took       series
	}
	var programs []*program
	for _, name := range []string{"empty", "noop", "ptp", "bridge", "host-local"} {
		programs = append(programs, &program{name: name, path: filepath.Join(b.opts.peers, name), plugin: true})
	}
	if b.agent != nil {
		for _, name := range []string{"berth-cni", "berthd", "berth"} {
			programs = append(programs, &program{name: name, path: filepath.Join(b.opts.bin, name), plugin: name == "berth-cni"})
		}
	}
	for range b.pick(15, 5) {
		for _, p := range programs {
			if !p.plugin {
				continue
			}
			took, err := execs(ctx, p.path, 20)
			if err != nil {
				return err
			}
			p.took = append(p.took, percentile(took, 50))
		}
	}
	for _, p := range programs {
		info, err := os.Stat(p.path)
		if err != nil {
			return err
		}
		size := fmt.Sprintf("%.2f", float64(info.Size())/1e6)
		if !p.plugin {
			t.row(p.name, size, "", "")
			continue
		}
		ratio, text := p.took.ratio(programs[0].took)
		t.row(p.name, size, num(median(p.took)), text)
		if p.name == "berth-cni" {
			b.report.atMost("size of berth-cni", float64(info.Size())/1e6, 2.5, "MB")
			t.note("berth-cni VERSION takes %.2f times as long as an empty program (the prototype took 1.3 times)", ratio)
		}
	}
	return nil
}

// execs runs a plugin's VERSION n times, one after another.
func execs(ctx context.Context, path string, n int) ([]time.Duration, error) {
	var took []time.Duration
	for range n {
		cmd := exec.CommandContext(ctx, path)
		cmd.Env = []string{"CNI_COMMAND=VERSION"}
		begun := time.Now()
		if out, err := cmd.Output(); err != nil {
			return nil, fmt.Errorf("running %s: %w\n%s", path, err, out)
		}
		took = append(took, time.Since(begun))
	}
	return took, nil
}

// memory measures the memory of a fresh agent without attachments and with 250.
func memory(ctx context.Context, b *bench) error {
	const attached = 250
	a, err := startAgent(ctx, b.opts.bin, filepath.Join(b.dir, "memory"), []string{"v4=10.96.0.0/16"})
	if err != nil {
		return err
	}
	defer a.Stop()
	ps, err := b.pods.first(attached)
	if err != nil {
		return err
	}
	idle, err := a.Resident()
	if err != nil {
		return err
	}
	if _, err := a.attach(ctx, ps); err != nil {
		return err
	}
	full, err := a.Resident()
	if err != nil {
		return err
	}
	if _, err := a.detach(ctx, ps); err != nil {
		return err
	}
	t := b.report.section("Resident memory of berthd", "attachments", "MB")
	t.row("0", mb(idle))
	t.row("250", mb(full))
	b.report.atMost("berthd resident with 250 attachments", float64(full)/1e6, 30, "MB")
	return settle(ps)
}

func mb(bytes int64) string { return fmt.Sprintf("%.1f", float64(bytes)/1e6) }

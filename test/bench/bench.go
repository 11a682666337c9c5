package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"
)

// stage is one part of a run. Stages run in order, in one process and on one
// node.
type stage struct {
	name  string
	agent bool // the stage measures only Berth's agent
	run   func(context.Context, *bench) error
}

var stages = []stage{
	{"footprint", false, footprint},
	{"memory", true, memory},
	{"churn", true, churn},
	{"beside", true, beside},
	{"load", false, load},
	{"burst", false, burst},
	{"breakdown", false, breakdown},
	{"away", true, away}, // comes before the ledger has had thousands of pods
	{"beside", true, beside},
	{"ports", true, ports},
	{"bandwidth", true, bandwidth},
	{"networks", true, networks},
	{"networks", true, others},
	{"nodes", true, nodes},
	{"cluster", true, clusterMemory},
	{"between", true, between},
	{"history", true, history},
	{"scale", false, scale},
	{"ipam", false, addresses},
	{"operator", true, operate},
	{"sweep", true, sweep},
	{"beside", true, beside},
	{"beside", false, besideExecs},
}

func stageNames() string {
	var all []string
	for _, s := range stages {
		if !slices.Contains(all, s.name) {
			all = append(all, s.name)
		}
	}
	return strings.Join(all, ", ")
}

// chosen reports whether a list from the command line has name. An empty list means all
// names.
func chosen(list []string, name string) bool { return len(list) == 0 || slices.Contains(list, name) }

// bench is one run.
type bench struct {
	opts     options
	dir      string // the folder for all of the run's files, on a real disk, since the cost of fsync matters
	networks []*network
	agent    *agent // nil if Berth is not measured
	was      *agent // the agent of another build; nil: there is none
	pods     *pods
	besides  besides
	report   *report
	begun    time.Time
}

// open starts the agents that contestants need, and sets up a network for each
// contestant.
func open(ctx context.Context, opts options, dir string) (*bench, error) {
	b := &bench{opts: opts, dir: dir, begun: time.Now(), pods: &pods{}}
	b.report = newReport(opts, dir)
	all := contestants
	if opts.before != "" {
		all = append(slices.Clone(all), was)
	}
	for _, c := range all {
		if !c.before && !chosen(opts.only, c.name) {
			continue
		}
		if err := b.start(ctx, c); err != nil {
			b.close()
			return nil, err
		}
		agent := b.agent
		if c.before {
			agent = b.was
		}
		n, err := newNetwork(c, opts, dir, agent)
		if err != nil {
			b.close()
			return nil, err
		}
		b.networks = append(b.networks, n)
	}
	return b, nil
}

// start starts the agent that a contestant needs, unless that agent runs already.
func (b *bench) start(ctx context.Context, c contestant) (err error) {
	switch {
	case c.before:
		b.was, err = startAgent(ctx, b.opts.before, c.root(b.dir), wasPools)
	case c.agent && b.agent == nil:
		b.agent, err = startAgent(ctx, b.opts.bin, c.root(b.dir), agentPools)
	}
	return err
}

// network returns the contestant of that name; nil if the run does not measure it.
func (b *bench) network(name string) *network {
	for _, n := range b.networks {
		if n.name == name {
			return n
		}
	}
	return nil
}

func (b *bench) close() {
	for _, a := range []*agent{b.agent, b.was} {
		if a != nil {
			a.Stop()
		}
	}
	b.pods.close()
}

// say shows progress.
func (b *bench) say(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "%6.1fs  %s\n", time.Since(b.begun).Seconds(), fmt.Sprintf(format, args...))
}

// pick returns full, or quick in a quick run.
func (b *bench) pick(full, quick int) int {
	if b.opts.quick {
		return quick
	}
	return full
}

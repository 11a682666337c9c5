// Command bench measures Berth beside the reference plugins and beside a
// plugin that does nothing, all in one run, and writes a table with ratios:
//
//	make bench                      # the full run, into docs/BENCHMARKS.md
//	go run ./test/bench -quick      # two minutes, to the terminal
//	go run ./test/bench -stages between,burst -out docs/BENCHMARKS.md   # replaces these stages' sections
//
// Bench runs in fresh namespaces (see internal/nettest), so that the machine's own network is
// never touched. The contestants take turns in every round, so that a noisy moment hits all
// of them alike.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/nettest"
)

// options are the command line.
type options struct {
	bin, peers string   // folders of programs, absolute
	before     string   // folder of another build's programs, to compare with; "": none
	out        string   // file of the report; "": standard output
	quick      bool     // fewer rounds, smaller node
	only       []string // contestants by name; empty: all
	stages     []string // stages by name; empty: all
}

func main() {
	opts := flags()
	nettest.Enter()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	defer stop()
	if err := run(ctx, opts); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func flags() options {
	var o options
	var only, stages string
	flag.StringVar(&o.bin, "bin", "bin", "folder of berthd, berth-cni and berth")
	flag.StringVar(&o.peers, "peers", "bin/peers", "folder that test/peers/build has filled")
	flag.StringVar(&o.before, "before", "", "folder of berthd and berth-cni of another build, which takes turns with the others")
	flag.StringVar(&o.out, "out", "", "write the report to `FILE` instead of standard output")
	flag.BoolVar(&o.quick, "quick", false, "fewer rounds and fewer pods: about two minutes")
	flag.StringVar(&only, "only", "", "comma-separated contestants: "+strings.Join(names(contestants), ", "))
	flag.StringVar(&stages, "stages", "", "comma-separated stages: "+stageNames())
	flag.Parse()
	o.only, o.stages = split(only), split(stages)
	for _, dir := range []*string{&o.bin, &o.peers, &o.before, &o.out} {
		if *dir == "" {
			continue
		}
		abs, err := filepath.Abs(*dir)
		if err != nil {
			fmt.Fprintln(os.Stderr, "bench:", err)
			os.Exit(2)
		}
		*dir = abs
	}
	return o
}

func split(list string) []string {
	return strings.FieldsFunc(list, func(r rune) bool { return r == ',' || r == ' ' })
}

// run measures everything and writes the report. Everything that it starts and makes is
// gone when it returns.
func run(ctx context.Context, opts options) error {
	if err := insideFreshNode(); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "berth-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	b, err := open(ctx, opts, dir)
	if err != nil {
		return err
	}
	defer b.close()
	for _, s := range stages {
		if !chosen(opts.stages, s.name) || s.agent && b.agent == nil {
			continue
		}
		b.say("%s", s.name)
		b.report.stage = s.name
		if err := errors.Join(s.run(ctx, b), b.pods.close()); err != nil {
			fmt.Fprint(os.Stderr, b.report.text()) // the report so far; a file gets only reports of whole runs
			return fmt.Errorf("measuring %s: %w", s.name, err)
		}
	}
	return b.report.write(opts.out, len(opts.stages) > 0)
}

// insideFreshNode refuses to measure in a network namespace that has more than lo:
// nettest.Enter returns also if it cannot make a fresh namespace.
func insideFreshNode() error {
	links, err := net.Interfaces()
	if err != nil {
		return fmt.Errorf("listing links: %w", err)
	}
	if len(links) != 1 || links[0].Flags&net.FlagLoopback == 0 {
		return errors.New("no fresh network namespace to be had: run as root, or where user namespaces are allowed")
	}
	return nil
}

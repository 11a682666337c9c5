// Command conform runs `berth conform` on Berth and on the reference plugins, and
// writes docs/CONFORMANCE.md: checks by plugins, with each finding explained. It
// fails if Berth has a fail or a leak, or if a finding has no explanation.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"time"

	"github.com/berth-net/berth/conform"
)

func main() {
	bin := flag.String("bin", "bin", "folder of berth, berthd and berth-cni")
	peers := flag.String("peers", "bin/peers", "folder of the reference plugins")
	lists := flag.String("lists", "test/conform", "folder of the lists and hooks")
	out := flag.String("out", "", "the page to write; empty: standard output")
	run := flag.String("run", "", "only these checks (regular expression)")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := publish(ctx, folders{*bin, *peers, *lists}, *run, *out); err != nil {
		fmt.Fprintln(os.Stderr, "conform:", err)
		os.Exit(1)
	}
}

// folders are the paths of the folders that the command needs.
type folders struct{ bin, peers, lists string }

// publish judges every subject and writes the page.
func publish(ctx context.Context, in folders, run, out string) error {
	var judged []judgement
	for _, s := range subjects {
		began := time.Now()
		r, err := judge(ctx, in, s, run)
		if err != nil {
			return fmt.Errorf("judging %s: %w", s.name, err)
		}
		fmt.Fprintf(os.Stderr, "%-12s %3d pass %3d fail %3d leak %3d unsupported  %s\n", s.name, r.Count(conform.Pass),
			r.Count(conform.Fail), r.Count(conform.Leak), r.Count(conform.Unsupported), time.Since(began).Round(time.Second))
		judged = append(judged, judgement{s, r})
	}
	var text bytes.Buffer
	unexplained := page(&text, judged)
	if out == "" {
		fmt.Print(text.String())
	} else if err := os.WriteFile(out, text.Bytes(), 0o644); err != nil {
		return err
	}
	var errs []error
	for _, u := range unexplained {
		errs = append(errs, fmt.Errorf("no explanation (findings.go) of %s", u))
	}
	for _, j := range judged {
		if j.ours && !j.Clean() {
			errs = append(errs, fmt.Errorf("%s does not conform", j.name))
		}
	}
	return errors.Join(errs...)
}

// judge runs `berth conform` on one subject.
func judge(ctx context.Context, in folders, s subject, run string) (*conform.Report, error) {
	bin := in.peers
	if s.ours {
		bin = in.bin
	}
	args := []string{"conform", "-o", "json", "--bin-dir", bin, "--conf", filepath.Join(in.lists, "lists", s.name+".conflist")}
	for _, dir := range s.stateDirs {
		args = append(args, "--state-dir", dir)
	}
	if s.hooks != "" {
		args = append(args, "--hook-dir", filepath.Join(in.lists, s.hooks))
	}
	if run != "" {
		args = append(args, "--run", run)
	}
	cmd := exec.CommandContext(ctx, filepath.Join(in.bin, "berth"), args...)
	cmd.Stderr = os.Stderr
	raw, err := cmd.Output()
	var exit *exec.ExitError
	if err != nil && !(errors.As(err, &exit) && exit.ExitCode() == 1 && len(raw) > 0) {
		return nil, err
	}
	var r conform.Report
	return &r, json.Unmarshal(raw, &r)
}

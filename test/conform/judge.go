package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/berth-net/berth/conform"
)

// folders are the paths of the folders that the command needs.
type folders struct{ bin, peers, lists, reports string }

// judgement is a subject with its report.
type judgement struct {
	subject
	*conform.Report
}

// judgeAll returns a judgement of each subject, in the subjects' order, some of them made at once. only are the names of those that are judged
// anew; nil: all. The reports of the others are read from in.reports, where all reports are written: a subject that has none there is left out.
func judgeAll(ctx context.Context, in folders, only []string, atOnce int) ([]judgement, error) {
	for _, name := range only {
		if !slices.ContainsFunc(subjects, func(s subject) bool { return s.name == name }) {
			return nil, fmt.Errorf("-only %s: there is no such list in subjects.go", name)
		}
	}
	plugins, err := in.together()
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(plugins)
	judged, errs := make([]judgement, len(subjects)), make([]error, len(subjects))
	turns := make(chan struct{}, max(atOnce, 1))
	var all sync.WaitGroup
	for i, s := range subjects {
		turns <- struct{}{}
		all.Go(func() {
			defer func() { <-turns }()
			judged[i].subject = s
			if only != nil && !slices.Contains(only, s.name) {
				judged[i].Report, errs[i] = in.read(s)
				return
			}
			judged[i].Report, errs[i] = in.renew(ctx, s, plugins)
		})
	}
	all.Wait()
	return slices.DeleteFunc(judged, func(j judgement) bool { return j.Report == nil }), errors.Join(errs...)
}

// together makes a folder with links to the programs of bin and peers: a list may have plugins of both.
func (in folders) together() (dir string, err error) {
	if dir, err = os.MkdirTemp("", "conform-"); err != nil {
		return "", err
	}
	for _, from := range []string{in.peers, in.bin} {
		programs, err := filepath.Glob(filepath.Join(from, "*"))
		if err != nil {
			return dir, err
		}
		for _, p := range programs {
			if p, err = filepath.Abs(p); err != nil {
				return dir, err
			}
			if i, err := os.Stat(p); err != nil || !i.Mode().IsRegular() {
				continue
			}
			if err := os.Symlink(p, filepath.Join(dir, filepath.Base(p))); err != nil {
				return dir, err
			}
		}
	}
	return dir, nil
}

func (in folders) report(s subject) string { return filepath.Join(in.reports, s.name+".json") }

// read returns the report that stayed of a subject; nil if none did.
func (in folders) read(s subject) (*conform.Report, error) {
	raw, err := os.ReadFile(in.report(s))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var r conform.Report
	if err := json.Unmarshal(raw, &r); err != nil {
		return nil, fmt.Errorf("reading %s: %w", in.report(s), err)
	}
	return &r, nil
}

// renew judges a subject, and writes its report.
func (in folders) renew(ctx context.Context, s subject, plugins string) (*conform.Report, error) {
	r, raw, err := judge(ctx, in, plugins, s, "")
	if err != nil {
		return nil, fmt.Errorf("judging %s: %w", s.name, err)
	}
	fmt.Fprintf(os.Stderr, "%-18s %3d pass %3d fail %3d leak %3d unsupported  %s\n", s.name, r.Count(conform.Pass),
		r.Count(conform.Fail), r.Count(conform.Leak), r.Count(conform.Unsupported), r.Took.Round(time.Second))
	if err := os.MkdirAll(in.reports, 0o755); err != nil {
		return nil, err
	}
	return r, os.WriteFile(in.report(s), raw, 0o644)
}

// judge runs `berth conform` on one subject, whose plugins are in a folder. run chooses checks (a regular expression); "": all.
func judge(ctx context.Context, in folders, plugins string, s subject, run string) (*conform.Report, []byte, error) {
	args := []string{"conform", "-o", "json", "--bin-dir", plugins, "--conf", filepath.Join(in.lists, "lists", s.name+".conflist")}
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
	// 1: something is bad; 2: among others, that the kernel lacks what the plugins need
	if err != nil && !(errors.As(err, &exit) && exit.ExitCode() <= 2 && len(raw) > 0) {
		return nil, nil, err
	}
	var r conform.Report
	if bad := json.Unmarshal(raw, &r); bad != nil || r.Interrupted {
		return nil, nil, errors.Join(err, bad)
	}
	return &r, raw, nil
}

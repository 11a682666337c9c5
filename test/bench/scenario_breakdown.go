package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// breakdown says where the time of an ADD and of a DEL goes, one at a time, by the kernel's
// tracepoints, which perf records. Every step begins where the one before ends, so that each
// millisecond has a name. The table also has the floors, which ask nobody, and so have only three steps.
func breakdown(ctx context.Context, b *bench) error {
	if _, err := exec.LookPath("perf"); err != nil {
		b.report.section("Where the time of one ADD goes").note("Without perf (Debian's package linux-perf) nobody sees where the time of an ADD goes: %v", err)
		return nil
	}
	for _, verb := range []string{"ADD", "DEL"} {
		t := b.report.section(fmt.Sprintf("Where the time of one %s goes, by tracepoints: medians in µs", verb), append([]string{"from - to"}, stepNames...)...)
		for _, name := range []string{bareName, floorName, berthName} {
			n := b.network(name)
			if n == nil {
				continue
			}
			all, err := b.traced(ctx, n, verb)
			if err != nil {
				return err
			}
			t.row(append([]string{name}, all.cells()...)...)
		}
	}
	return nil
}

// stepNames are the columns of a breakdown.
var stepNames = []string{
	"fork - exec", "exec - connect", "connect - accept", "accept - sync", "sync", "sync - answer", "answer - exit", "exit - waited", "all",
}

// steps has, for each column of a breakdown, how long the step took in each process. A plugin that
// connects to nobody has no step between exec and exit: its whole life is in the second column.
type steps [][]time.Duration

func (s steps) cells() []string {
	cells := make([]string, len(s))
	for i, took := range s {
		if len(took) > 0 {
			cells[i] = fmt.Sprintf("%.0f", float64(median(took).Nanoseconds())/1e3)
		}
	}
	return cells
}

// tracedPods is how many pods a breakdown attaches or detaches.
const tracedPods = 100

// traced runs a verb of a plugin in fresh pods, one after another, and returns its steps.
func (b *bench) traced(ctx context.Context, n *network, verb string) (steps, error) {
	ps, err := b.pods.fresh(b.pick(tracedPods, tracedPods/5))
	if err != nil {
		return nil, err
	}
	all := make([]*attachment, len(ps))
	for i, p := range ps {
		all[i] = n.attachment(p)
	}
	each := func(do func(*attachment, context.Context) (time.Duration, error)) func() error {
		return func() error {
			_, _, err := together(1, all, func(a *attachment) (time.Duration, error) { return do(a, ctx) })
			return errors.Join(err, n.idle(ctx))
		}
	}
	add, del := each((*attachment).add), each((*attachment).del)
	var events []traceEvent
	if verb == "ADD" {
		if events, err = b.trace(ctx, add); err == nil {
			err = del()
		}
	} else if err = add(); err == nil {
		events, err = b.trace(ctx, del)
	}
	if err != nil {
		return nil, err
	}
	agent := -1
	if n.agent {
		agent = b.agent.PID()
	}
	s := stepsOf(events, n.list.Plugins[0].Network.Type, os.Getpid(), agent)
	if got := len(s[len(s)-1]); got < len(ps)*9/10 {
		return nil, fmt.Errorf("the trace has %d whole runs of %s %s; want %d", got, n.name, verb, len(ps))
	}
	return s, settle(ps)
}

// tracepoints are what a breakdown records. Plugins and the agent make other system calls, too.
// They pass each of these tracepoints only a few times for each verb.
var tracepoints = []string{
	"sched:sched_process_fork", "sched:sched_process_exec", "sched:sched_process_exit",
	"syscalls:sys_enter_connect", "syscalls:sys_exit_accept4", "syscalls:sys_enter_fdatasync", "syscalls:sys_exit_fdatasync",
	"syscalls:sys_exit_read", "syscalls:sys_exit_waitid", "syscalls:sys_exit_wait4",
}

// trace records the tracepoints of all processes while f runs.
func (b *bench) trace(ctx context.Context, f func() error) ([]traceEvent, error) {
	data := filepath.Join(b.dir, "perf.data")
	defer os.Remove(data)
	args := []string{"record", "-q", "-a", "-k", "CLOCK_MONOTONIC", "-m", "1M", "-o", data, "--delay", "-1", "--control", "fd:3,4"}
	for _, t := range tracepoints {
		args = append(args, "-e", t)
	}
	var said bytes.Buffer
	record := exec.CommandContext(ctx, "perf", args...)
	record.Stdout, record.Stderr = &said, &said
	ask, err := startControlled(record)
	if err == nil {
		err = ask("enable")
	}
	if err == nil {
		err = errors.Join(f(), ask("stop"))
	}
	if record.Process != nil {
		err = errors.Join(err, record.Wait())
	}
	if err != nil {
		return nil, fmt.Errorf("perf record: %w\n%s", err, bytes.TrimSpace(said.Bytes()))
	}
	out, err := exec.CommandContext(ctx, "perf", "script", "-i", data, "--ns", "-F", "comm,pid,time,event,trace").Output()
	if err != nil {
		return nil, fmt.Errorf("perf script: %w", err)
	}
	return parseTrace(string(out)), nil
}

// startControlled starts perf record, and returns ask. ask gives perf a command, and waits until perf
// has done it (perf-record(1), --control).
func startControlled(record *exec.Cmd) (ask func(string) error, err error) {
	commands, asks, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	answers, acks, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, commands.Close(), asks.Close())
	}
	record.ExtraFiles = []*os.File{commands, acks}
	err = record.Start()
	commands.Close()
	acks.Close()
	if err != nil {
		return nil, errors.Join(err, asks.Close(), answers.Close())
	}
	lines := bufio.NewReader(answers)
	return func(what string) error {
		if _, err := fmt.Fprintln(asks, what); err != nil {
			return err
		}
		got, err := lines.ReadString('\n')
		if err != nil || strings.Trim(got, "\x00\n") != "ack" {
			return fmt.Errorf("%s: answer %q: %w", what, got, err)
		}
		return nil
	}, nil
}

package main

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// traceEvent is one line of perf script.
type traceEvent struct {
	comm string        // the process's name, at most 15 bytes
	pid  int           // of the process
	at   time.Duration // CLOCK_MONOTONIC
	what string        // such as sys_exit_read
	args string        // as the kernel prints them
}

// traceLine is a line of `perf script --ns -F comm,pid,time,event,trace`.
var traceLine = regexp.MustCompile(`^\s*(.+?)\s+(\d+)\s+(\d+)\.(\d{9}):\s+[a-z]+:(\w+):\s*(.*)$`)

// parseTrace reads perf script's lines, which are in the order of time, and leaves out lines of another
// form.
func parseTrace(text string) (all []traceEvent) {
	for line := range strings.Lines(text) {
		m := traceLine.FindStringSubmatch(strings.TrimSuffix(line, "\n"))
		if m == nil {
			continue
		}
		at, err := time.ParseDuration(m[3] + "s" + m[4] + "ns")
		pid, pidErr := strconv.Atoi(m[2])
		if err != nil || pidErr != nil {
			continue
		}
		all = append(all, traceEvent{m[1], pid, at, m[5], m[6]})
	}
	return all
}

// arg returns a number among an event's arguments.
func (e traceEvent) arg(name string) int {
	_, rest, _ := strings.Cut(" "+e.args, " "+name+"=")
	n := 0
	if _, err := fmt.Sscan(strings.TrimSuffix(rest, ","), &n); err != nil {
		return -1
	}
	return n
}

// returned returns a system call's result (sys_exit_...).
func (e traceEvent) returned() int64 {
	n, err := strconv.ParseInt(strings.TrimPrefix(e.args, "0x"), 16, 64)
	if err != nil {
		return -1 // an errno of the kernel's does not fit
	}
	return n
}

// life has the moments of one run of a plugin. 0 means that the run had no such moment.
type life struct {
	pid                                                           int
	forked, execed, asked, accepted, sync, synced, answered, died time.Duration
}

// stepsOf returns the steps of each whole run of a plugin. The process parent has started the runs, one
// after another, and the process agent has served them (-1: the plugin asks no agent).
func stepsOf(events []traceEvent, plugin string, parent, agent int) steps {
	all := make(steps, len(stepNames))
	forks := map[int]time.Duration{}
	var r *life
	for _, e := range events {
		switch {
		case e.what == "sched_process_fork":
			forks[e.arg("child_pid")] = e.at
		case e.what == "sched_process_exec" && filepath.Base(nameOf(e)) == plugin:
			r = &life{pid: e.pid, execed: e.at, forked: forks[e.pid]}
		case r == nil:
		case e.pid == parent && strings.HasPrefix(e.what, "sys_exit_wait") && r.died != 0:
			all.add(*r, e.at, agent >= 0)
			r = nil
		case e.pid == r.pid:
			r.inPlugin(e)
		case e.pid == agent:
			r.inAgent(e)
		}
	}
	return all
}

// nameOf returns the file that was executed.
func nameOf(e traceEvent) string {
	_, rest, _ := strings.Cut(e.args, "filename=")
	name, _, _ := strings.Cut(rest, " ")
	return name
}

func (r *life) inPlugin(e traceEvent) {
	switch {
	case e.what == "sys_enter_connect":
		r.asked = e.at
	case e.what == "sys_exit_read" && e.returned() > 0 && r.asked != 0:
		r.answered = e.at
	case e.what == "sched_process_exit":
		r.died = e.at // of its last thread
	}
}

func (r *life) inAgent(e traceEvent) {
	switch {
	case r.answered != 0 || r.asked == 0: // the agent's own work
	case e.what == "sys_exit_accept4" && e.returned() >= 0 && r.accepted == 0:
		r.accepted = e.at
	case r.accepted == 0:
	case e.what == "sys_enter_fdatasync" && r.sync == 0:
		r.sync = e.at
	case e.what == "sys_exit_fdatasync" && r.sync != 0:
		r.synced = e.at
	}
}

// add adds a run whose parent has waited for it, if the run is whole.
func (s steps) add(r life, waited time.Duration, served bool) {
	moments := []time.Duration{r.forked, r.execed, r.asked, r.accepted, r.sync, r.synced, r.answered, r.died, waited}
	if !served {
		moments = []time.Duration{r.forked, r.execed, r.died, r.died, r.died, r.died, r.died, r.died, waited}
	}
	for i, at := range moments {
		if at == 0 || i > 0 && at < moments[i-1] {
			return
		}
	}
	for i := 1; i < len(moments); i++ {
		if served || i == 1 || i == 2 || i == len(moments)-1 {
			s[i-1] = append(s[i-1], moments[i]-moments[i-1])
		}
	}
	s[len(s)-1] = append(s[len(s)-1], waited-r.forked)
}

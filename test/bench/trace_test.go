package main

import (
	"slices"
	"testing"
	"time"
)

// traced is a trace of one ADD, as perf script writes it; other programs run beside that ADD. The
// plugin's process has several threads, and reads its configuration before it connects.
const traced = `
           bench  100 1.000001000:  sched:sched_process_fork: comm=bench pid=101 child_comm=bench child_pid=200
       berth-cni  200 1.000101000:  sched:sched_process_exec: filename=/x/bin/berth-cni pid=200 old_pid=200
       berth-cni  200 1.000201000:    syscalls:sys_exit_read: 0x45
   other program  300 1.000301000: syscalls:sys_enter_connect: fd: 0x00000003, uservaddr: 0xc0, addrlen: 0x1a
       berth-cni  200 1.001101000: syscalls:sys_enter_connect: fd: 0x00000003, uservaddr: 0xc0, addrlen: 0x1a
          berthd  150 1.001111000: syscalls:sys_exit_accept4: 0xfffffffffffffff5
          berthd  150 1.001151000: syscalls:sys_exit_accept4: 0x9
          berthd  150 1.001651000: syscalls:sys_enter_fdatasync: fd: 0x00000008
          berthd  150 1.001851000: syscalls:sys_exit_fdatasync: 0x0
          berthd  150 1.001851500: syscalls:sys_enter_fdatasync: fd: 0x00000008
          berthd  150 1.001951000: syscalls:sys_exit_fdatasync: 0x0
       berth-cni  200 1.002951000:    syscalls:sys_exit_read: 0x1f4
       berth-cni  200 1.003001000: sched:sched_process_exit: comm=berth-cni pid=201 prio=120 group_dead=false
       berth-cni  200 1.003051000: sched:sched_process_exit: comm=berth-cni pid=200 prio=120 group_dead=true
           bench  100 1.003151000:  syscalls:sys_exit_waitid: 0x0
perf says something else
`

func TestTrace(t *testing.T) {
	events := parseTrace(traced)
	s := stepsOf(events, "berth-cni", 100, 150)
	want := []time.Duration{100, 1000, 50, 500, 300, 1000, 100, 100, 3150} // µs
	for i, name := range stepNames {
		if !slices.Equal(s[i], []time.Duration{want[i] * time.Microsecond}) {
			t.Errorf("%s: %v; want %d µs", name, s[i], want[i])
		}
	}
	s = stepsOf(events, "berth-cni", 100, -1) // as a plugin that asks nobody
	if got, want := s.cells(), []string{"100", "2950", "", "", "", "", "", "100", "3150"}; !slices.Equal(got, want) {
		t.Errorf("%q; want %q", got, want)
	}
	without := slices.DeleteFunc(events, func(e traceEvent) bool { return e.what == "sys_exit_accept4" })
	if s = stepsOf(without, "berth-cni", 100, 150); len(s[len(s)-1]) != 0 {
		t.Errorf("a run without a moment counts: %v", s)
	}
}

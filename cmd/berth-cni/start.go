package main

import (
	"strconv"
	"strings"
	"time"
)

// statFile says when this process began.
const statFile = "/proc/self/stat"

// statTick is the unit of times in /proc/PID/stat: 1/USER_HZ s, which is the same on every
// architecture of Linux that Go knows.
const statTick = 10 * time.Millisecond

// startOf returns when this process began, or a little later, but not after now
// (CLOCK_BOOTTIME in nanoseconds). The starts decide which of two verbs overtakes the other: a
// DEL whose exec took long is as old as the runtime's wish, and not as young as the program's first
// instruction. If one verb began after another had ended, the later verb has the later start, too.
//
// The runtime's wish may be younger than the process, though: a runtime may keep processes
// ready, and one of them becomes the plugin (execve) when the runtime needs the plugin. The kernel does
// not tell when that was. So a DEL says both when its process began and when the plugin ran, and
// the runtime has to repeat the DEL of a pod whose ADD began in between (cni.MsgUnsure).
//
// parent says that the process has waited for children. Either it is a wrapper, which the
// runtime began for this verb, and which needed a child first (conf=$(cat)). Or it is a shell
// that ran another verb before (sh -c "berth-cni; exec berth-cni"). Nothing tells the two
// apart. See verb.adds for what follows.
func startOf(now int64) (started int64, parent bool) {
	stat, err := readShort(statFile)
	if err != nil {
		return now, false
	}
	end, parent, ok := born(stat)
	if !ok {
		return now, false
	}
	return min(now, end), parent
}

// born returns the end of the tick in which a process began, and whether it has waited for
// children, by its /proc/PID/stat (proc_pid_stat(5)). ok is false if stat lacks either fact.
func born(stat string) (end int64, parent, ok bool) {
	// The second field is the program's name in parentheses. The name can have any characters.
	name := strings.LastIndexByte(stat, ')')
	if name < 0 {
		return 0, false, false
	}
	const first, cminflt, cmajflt, starttime = 3, 11, 13, 22
	rest, begun := strings.TrimPrefix(stat[name+1:], " "), ""
	for field := first; field <= starttime; field++ {
		begun, rest, _ = strings.Cut(rest, " ")
		if (field == cminflt || field == cmajflt) && begun != "0" {
			parent = true
		}
	}
	ticks, err := strconv.ParseInt(begun, 10, 64)
	if err != nil || ticks <= 0 || ticks >= (1<<63-1)/int64(statTick) {
		return 0, false, false
	}
	return (ticks + 1) * int64(statTick), parent, true
}

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
// DEL whose exec took long is as old as the runtime's wish, and not as young as its first
// instruction. If one verb began after another had ended, its start is later, too.
//
// The runtime's wish may be younger than the process, though: a runtime may keep processes
// ready, and one of them becomes the plugin (execve) when it is needed. The kernel does not
// tell when that was. So a DEL says both when its process began and when the plugin ran, and
// the runtime has to repeat the DEL of a pod whose ADD began in between (cni.MsgUnsure).
func startOf(now int64) int64 {
	stat, err := readShort(statFile)
	if err != nil {
		return now
	}
	end, ok := born(stat)
	if !ok {
		return now
	}
	return min(now, end)
}

// born returns the end of the tick in which a process began, by its /proc/PID/stat
// (proc_pid_stat(5)). ok is false if stat does not say so, or if the process has waited for
// children: a shell that runs one verb may become the next one itself
// (sh -c "berth-cni; exec berth-cni"), and began before both.
func born(stat string) (end int64, ok bool) {
	// The second field is the program's name in parentheses. The name can have any characters.
	name := strings.LastIndexByte(stat, ')')
	if name < 0 {
		return 0, false
	}
	const first, cminflt, cmajflt, starttime = 3, 11, 13, 22
	rest, begun := strings.TrimPrefix(stat[name+1:], " "), ""
	for field := first; field <= starttime; field++ {
		begun, rest, _ = strings.Cut(rest, " ")
		if (field == cminflt || field == cmajflt) && begun != "0" {
			return 0, false
		}
	}
	ticks, err := strconv.ParseInt(begun, 10, 64)
	if err != nil || ticks <= 0 || ticks >= (1<<63-1)/int64(statTick) {
		return 0, false
	}
	return (ticks + 1) * int64(statTick), true
}

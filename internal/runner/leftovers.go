package runner

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// againAfter is how long the runner waits for the end of what it has killed before it looks again.
const againAfter = 500 * time.Millisecond

// endLeftovers kills what a killed runner has left running, and waits for its end in a goroutine. Until
// then nothing else runs for the containers of these plugins.
func (r *Runner) endLeftovers() error {
	left, err := r.records.left()
	if err != nil || len(left) == 0 {
		return err
	}
	turns := map[record]*place{}
	for _, rec := range left {
		turns[rec] = r.queue.seize(rec.container, "a plugin of a berth-runner that was killed")
	}
	r.ends.Go(func() {
		for len(turns) > 0 && r.ctx.Err() == nil {
			alive, err := holders(turns)
			if err != nil {
				r.log.Warn("cannot look for plugins of a runner that was killed", "err", err)
			}
			for rec, turn := range turns {
				if err == nil && len(alive[rec.token]) == 0 {
					r.records.end(rec)
					turn.leave()
					delete(turns, rec)
				}
			}
			r.looked()
			r.killAll(alive)
		}
	})
	return nil
}

// killAll kills processes, and waits until one of them has ended, but not for long.
func (r *Runner) killAll(alive map[string][]int) {
	var ends []unix.PollFd
	for token, pids := range alive {
		for _, pid := range pids {
			fd, err := unix.PidfdOpen(pid, 0)
			if err != nil {
				continue // it has ended
			}
			defer unix.Close(fd)
			if tokenOf(pid) == token { // the descriptor is the process's, and not that of a successor of its id
				r.log.Info("killing what a killed runner has left running", "pid", pid)
				_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0) // ESRCH: it has ended
			}
			ends = append(ends, unix.PollFd{Fd: int32(fd), Events: unix.POLLIN})
		}
	}
	if len(ends) > 0 {
		_, _ = unix.Poll(ends, int(againAfter.Milliseconds())) // the caller looks again in any case
	}
}

// holders returns the processes that have the token of a record in their environment. Those that are
// dead already have no environment.
//
//	grep -l BERTH_RUN=TOKEN /proc/[0-9]*/environ
func holders(of map[record]*place) (map[string][]int, error) {
	tokens := map[string]bool{}
	for rec := range of {
		tokens[rec.token] = true
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("listing processes: %w", err)
	}
	alive := map[string][]int{}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if token := tokenOf(pid); tokens[token] {
			alive[token] = append(alive[token], pid)
		}
	}
	return alive, nil
}

// tokenOf returns the token in the environment of a process; "": it has none, or has ended.
func tokenOf(pid int) string {
	raw, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "environ"))
	for variable := range bytes.SplitSeq(raw, []byte{0}) {
		if token, ok := bytes.CutPrefix(variable, []byte(tokenVariable+"=")); ok {
			return string(token)
		}
	}
	return ""
}

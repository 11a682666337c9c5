package process

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"

	"golang.org/x/sys/unix"
)

// Freeze is Freeze of the agent's process.
func (a *Agent) Freeze() error { return Freeze(a.PID()) }

// Freeze sends a process SIGSTOP, and waits until every thread has come out of its system call
// and has stopped. Without the wait the process may still go on: one thread has to run and to take the
// signal before the others stop, and on a busy machine the others run before that thread does.
func Freeze(pid int) error {
	if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
		return fmt.Errorf("sending SIGSTOP to %d: %w", pid, err)
	}
	for {
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
		if err != nil || len(threads) == 0 {
			return errors.Join(err, os.ErrProcessDone)
		}
		if !slices.ContainsFunc(threads, runs) {
			return nil
		}
		runtime.Gosched()
	}
}

// runs reports whether a thread, given by its /proc/PID/task/TID/stat, has neither
// stopped nor ended.
func runs(stat string) bool {
	raw, err := os.ReadFile(stat)
	_, state, _ := bytes.Cut(raw[bytes.LastIndexByte(raw, ')')+1:], []byte(" ")) // proc_pid_stat(5)
	return err == nil && len(state) > 0 && !bytes.ContainsAny(state[:1], "TZX")
}

package killer

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// options are the tracer's: the kernel tells the tracer of new threads, processes and programs,
// and of the filter's stops. The kernel kills the program if the tracer dies.
const options = unix.PTRACE_O_TRACESYSGOOD | unix.PTRACE_O_TRACECLONE | unix.PTRACE_O_TRACEFORK |
	unix.PTRACE_O_TRACEVFORK | unix.PTRACE_O_TRACEEXEC | unix.PTRACE_O_TRACESECCOMP | unix.PTRACE_O_EXITKILL

// syscallStop is the signal of a stop at a call's end (PTRACE_O_TRACESYSGOOD).
const syscallStop = unix.SIGTRAP | 0x80

// tracer follows all threads of a process. It runs in one thread.
type tracer struct {
	*Process
	onBoard bool // whether options are set
	started bool // whether the program itself runs, and no longer the board
}

// run returns how the process ended, when it is gone.
func (t *tracer) run() (unix.WaitStatus, error) {
	for {
		var status unix.WaitStatus
		// WNOTHREAD: wait only for this thread's children, since other tracers wait for their own.
		tid, err := unix.Wait4(-1, &status, unix.WALL|unix.WNOTHREAD, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return 0, fmt.Errorf("waiting for process %d: %w", t.Pid, os.NewSyscallError("wait4", err))
		}
		if status.Exited() || status.Signaled() {
			if tid == t.Pid {
				return status, nil
			}
			continue
		}
		if err := t.stop(tid, status); err != nil && !errors.Is(err, unix.ESRCH) { // ESRCH: the thread has been killed meanwhile
			_ = unix.Kill(t.Pid, unix.SIGKILL)
			return 0, err
		}
	}
}

// stop decides what a thread that has stopped does next.
func (t *tracer) stop(tid int, status unix.WaitStatus) error {
	switch signal := status.StopSignal(); {
	case !t.onBoard:
		t.onBoard = true
		if err := unix.PtraceSetOptions(tid, options); err != nil {
			return fmt.Errorf("tracing process %d: %w", t.Pid, os.NewSyscallError("ptrace", err))
		}
		return unix.PtraceCont(tid, 0)
	case signal == unix.SIGTRAP && status.TrapCause() == unix.PTRACE_EVENT_SECCOMP:
		return t.decide(tid)
	case signal == syscallStop: // the end of a call after which the program is to be killed
		return unix.Kill(t.Pid, unix.SIGKILL)
	case signal == unix.SIGTRAP && status.TrapCause() == unix.PTRACE_EVENT_EXEC:
		t.started = true
		return unix.PtraceCont(tid, 0)
	case signal == unix.SIGTRAP && status.TrapCause() > 0, signal == unix.SIGSTOP: // a new thread, seen in its parent and in itself
		return unix.PtraceCont(tid, 0)
	default:
		return unix.PtraceCont(tid, int(signal))
	}
}

// decide asks the judge about the call that a thread is about to make.
func (t *tracer) decide(tid int) error {
	judge := t.judge.Load()
	if judge == nil || !t.started {
		return unix.PtraceCont(tid, 0)
	}
	call, err := t.look(tid)
	if err != nil {
		return err
	}
	if call == nil {
		return unix.PtraceCont(tid, 0)
	}
	switch v := (*judge)(*call); v.Do {
	case KillBefore: // a call at which a killed thread is stopped never happens (seccomp(2))
		return unix.Kill(t.Pid, unix.SIGKILL)
	case KillAfter:
		return unix.PtraceSyscall(tid, 0)
	case Fail:
		if err := fail(tid, v.Errno); err != nil {
			return err
		}
	case Hold:
		return nil
	}
	return unix.PtraceCont(tid, 0)
}

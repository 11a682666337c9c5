package killer

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/kernel/ns"
)

// Verdict says what becomes of a system call.
type Verdict struct {
	Do    Action
	Errno unix.Errno // the error, if Do is Fail
}

// Action is what a killer does at a system call.
type Action int

// The actions.
const (
	Pass       Action = iota
	KillBefore        // the program gets SIGKILL, and the call does not happen
	KillAfter         // the program gets SIGKILL after the call's effect, before the call returns
	Fail              // the call has no effect and returns Errno
	Hold              // the call does not happen, and the thread waits until the program is killed
)

func (v Verdict) String() string {
	switch v.Do {
	case KillBefore:
		return "kill before"
	case KillAfter:
		return "kill after"
	case Fail:
		return fmt.Sprintf("fail with %s", unix.ErrnoName(v.Errno))
	case Hold:
		return "hold"
	}
	return "pass"
}

// Judge decides about each call at which the program stops. One goroutine calls it.
type Judge func(Call) Verdict

// Command is a program to run.
type Command struct {
	Netns  string // path of the network namespace; "": this process's own
	Path   string // the program's absolute path
	Args   []string
	Env    []string // nil: this process's own
	Stdin  *os.File // nil: /dev/null
	Stdout *os.File
	Stderr *os.File
}

// Process is a program under a killer.
type Process struct {
	Pid    int
	judge  atomic.Pointer[Judge]
	status unix.WaitStatus
	err    error // error of the tracer itself
	done   chan struct{}
}

// dying is how long a process may take to end after SIGKILL, or after another signal by
// which it ends.
const dying = 30 * time.Second

// Start starts a program under a judge, which may be nil: then all calls pass.
func Start(c Command, judge Judge) (*Process, error) {
	p := &Process{done: make(chan struct{})}
	p.Watch(judge)
	argv := append([]string{board, c.Netns, c.Path}, c.Args...)
	return p, p.start(c, func(attr *syscall.ProcAttr) error {
		attr.Sys.Ptrace = true
		pid, err := syscall.ForkExec("/proc/self/exe", argv, attr)
		p.Pid = pid
		return err
	}, func() (unix.WaitStatus, error) { return (&tracer{Process: p}).run() })
}

// StartFree starts a program without a tracer. Only signals end it.
func StartFree(c Command) (*Process, error) {
	p := &Process{done: make(chan struct{})}
	argv := append([]string{c.Path}, c.Args...)
	return p, p.start(c, func(attr *syscall.ProcAttr) error {
		if c.Netns != "" { // a child starts in the namespace of the thread that forks it
			at, err := ns.Open(c.Netns)
			if err != nil {
				return err
			}
			defer at.Close()
			if err := unix.Setns(at.Fd(), unix.CLONE_NEWNET); err != nil {
				return fmt.Errorf("entering %s: %w", c.Netns, err)
			}
		}
		var err error
		p.Pid, err = syscall.ForkExec(c.Path, argv, attr)
		return err
	}, p.reap)
}

// start runs fork and then wait, which returns when the process is gone, in one thread.
// That thread is the process's tracer, and if the thread ended, the kernel would kill the
// process (Pdeathsig).
func (p *Process) start(c Command, fork func(*syscall.ProcAttr) error, wait func() (unix.WaitStatus, error)) error {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	attr := &syscall.ProcAttr{Env: c.Env, Sys: &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}}
	if attr.Env == nil {
		attr.Env = os.Environ()
	}
	for _, f := range []*os.File{c.Stdin, c.Stdout, c.Stderr} {
		if f == nil {
			f = null
		}
		attr.Files = append(attr.Files, f.Fd())
	}
	begun := make(chan error)
	go func() {
		runtime.LockOSThread() // for good: the thread ends with this function
		err := fork(attr)
		begun <- err
		if err == nil {
			p.status, p.err = wait()
			close(p.done)
		}
	}()
	if err := <-begun; err != nil {
		return fmt.Errorf("starting %s: %w", c.Path, err)
	}
	return nil
}

// reap waits until the process is gone.
func (p *Process) reap() (unix.WaitStatus, error) {
	for {
		var status unix.WaitStatus
		_, err := unix.Wait4(p.Pid, &status, 0, nil)
		if !errors.Is(err, unix.EINTR) {
			return status, os.NewSyscallError("wait4", err)
		}
	}
}

// Watch replaces the judge. A nil judge lets all calls pass.
func (p *Process) Watch(judge Judge) {
	if judge == nil {
		p.judge.Store(nil)
		return
	}
	p.judge.Store(&judge)
}

// Signal sends a signal, unless the process is gone.
func (p *Process) Signal(s unix.Signal) {
	if !p.Gone() {
		_ = unix.Kill(p.Pid, s)
	}
}

// Gone reports whether the process is gone.
func (p *Process) Gone() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// Kill sends SIGKILL and waits until the process is gone.
func (p *Process) Kill() error {
	_, err := p.End(unix.SIGKILL)
	return err
}

// End sends a signal by which the process ends, and waits until the process is gone.
func (p *Process) End(s unix.Signal) (unix.WaitStatus, error) {
	p.Signal(s)
	return p.Wait(dying)
}

// Wait waits until the process is gone. After limit, Wait kills the process, and returns an
// error.
func (p *Process) Wait(limit time.Duration) (unix.WaitStatus, error) {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-p.done:
		return p.status, p.err
	case <-timer.C:
	}
	_ = unix.Kill(p.Pid, unix.SIGKILL)
	<-p.done
	return p.status, errors.Join(p.err, fmt.Errorf("process %d did not end within %v", p.Pid, limit))
}

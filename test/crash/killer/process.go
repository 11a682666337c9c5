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
)

// Verdict is what becomes of a system call.
type Verdict struct {
	Do    Action
	Errno unix.Errno // of Fail
}

// Action is the sort of a verdict.
type Action int

// The actions.
const (
	Pass       Action = iota
	KillBefore        // SIGKILL instead of it
	KillAfter         // SIGKILL once it has had its effect, before the program knows
	Fail              // it has no effect and answers Errno
	Hold              // it does not come to pass until the program is killed
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

// Judge decides about each call that stops. It is called by one goroutine.
type Judge func(Call) Verdict

// Command is a program to run.
type Command struct {
	Netns  string // path of the network namespace; "": this process's own
	Path   string // of the program, absolute
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
	err    error // of the tracer itself
	done   chan struct{}
	trace  *tracer
}

// dying is how long a process may take to be gone after SIGKILL, or after a
// signal that it ends by.
const dying = 30 * time.Second

// Start starts a program. The judge may be nil: then all calls pass.
func Start(c Command, judge Judge) (*Process, error) {
	p := &Process{done: make(chan struct{})}
	p.Watch(judge)
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	files := make([]uintptr, 0, 3)
	for _, f := range []*os.File{c.Stdin, c.Stdout, c.Stderr} {
		if f == nil {
			f = null
		}
		files = append(files, f.Fd())
	}
	env := c.Env
	if env == nil {
		env = os.Environ()
	}
	attr := &syscall.ProcAttr{Env: env, Files: files, Sys: &syscall.SysProcAttr{Ptrace: true, Pdeathsig: unix.SIGKILL}}
	argv := append([]string{board, c.Netns, c.Path}, c.Args...)
	begun := make(chan error)
	go func() { // the thread that starts it is its tracer, as long as it lives
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		var err error
		p.Pid, err = syscall.ForkExec("/proc/self/exe", argv, attr)
		begun <- err
		if err != nil {
			return
		}
		p.trace = newTracer(p)
		p.status, p.err = p.trace.run()
		close(p.done)
	}()
	if err := <-begun; err != nil {
		return nil, fmt.Errorf("starting %s: %w", c.Path, err)
	}
	return p, nil
}

// Watch changes the judge. nil lets all calls pass.
func (p *Process) Watch(judge Judge) {
	if judge == nil {
		p.judge.Store(nil)
		return
	}
	p.judge.Store(&judge)
}

// Signal sends a signal; one that is gone gets none.
func (p *Process) Signal(s unix.Signal) {
	select {
	case <-p.done:
	default:
		_ = unix.Kill(p.Pid, s)
	}
}

// Done is closed when the process is gone.
func (p *Process) Done() <-chan struct{} { return p.done }

// Gone reports whether the process is gone.
func (p *Process) Gone() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// Kill is SIGKILL, with which the process is gone.
func (p *Process) Kill() error {
	_, err := p.End(unix.SIGKILL)
	return err
}

// End sends a signal and waits for the process to end by it.
func (p *Process) End(s unix.Signal) (unix.WaitStatus, error) {
	p.Signal(s)
	return p.Wait(dying)
}

// Wait waits until the process is gone, and kills it when its time is up.
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

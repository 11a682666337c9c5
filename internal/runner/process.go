package runner

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/cni"
	"github.com/berth-net/berth/internal/runner/wire"
)

// patiences are how long the runner waits for what may not come.
type patiences struct {
	draining time.Duration // for the end of the output of a plugin that has ended: its children may have it
	killing  time.Duration // for the end of a plugin that was killed
	// pause waits for a time, and reports whether the context has not ended.
	pause func(context.Context, time.Duration) bool
	// after returns a channel that has something once a plugin's time is over.
	after func(time.Duration) <-chan time.Time
	// looked is called when leftovers have been looked for, before they are killed.
	looked func()
}

var usual = patiences{draining: time.Second, killing: 5 * time.Second, pause: wait, after: time.After, looked: func() {}}

// busyPauses are the pauses before further tries to start a plugin that somebody writes (ETXTBSY).
var busyPauses = []time.Duration{10 * time.Millisecond, 50 * time.Millisecond, 200 * time.Millisecond, 700 * time.Millisecond, 2 * time.Second}

// process is a plugin that runs.
type process struct {
	pid     int
	patient patiences
	streams *streams
	began   time.Time
	exited  chan struct{} // closed when the process has ended; it is a zombie until reap, and its id nobody else's
}

// start starts a plugin in a process group of its own.
func (r *Runner) start(ctx context.Context, path string, env []string, stdin []byte) (*process, error) {
	s, err := newStreams(r.output)
	if err != nil {
		return nil, cni.Errorf(cni.CodeTryAgain, wire.MsgUnrunable, "making pipes: %v", err)
	}
	var pid int
	began := time.Now()
	for _, pause := range append(slices.Clip(busyPauses), 0) {
		began = time.Now()
		if pid, err = r.fork(path, env, s); err != unix.ETXTBSY || pause == 0 || !r.pause(ctx, pause) {
			break
		}
	}
	if err != nil {
		for _, fd := range s.theirs {
			unix.Close(fd)
		}
		s.close()
		return nil, unstarted(path, err)
	}
	s.started(stdin)
	p := &process{pid: pid, patient: r.patiences, streams: s, began: began, exited: make(chan struct{})}
	go func() {
		defer close(p.exited)
		for unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil) == unix.EINTR {
		}
	}()
	return p, nil
}

// fork has the thread start a program.
func (r *Runner) fork(path string, env []string, s *streams) (pid int, err error) {
	attr := &syscall.ProcAttr{
		Dir: "/", Env: env, Files: []uintptr{uintptr(s.theirs[0]), uintptr(s.theirs[1]), uintptr(s.theirs[2])},
		Sys: &syscall.SysProcAttr{Setpgid: true, Pdeathsig: unix.SIGKILL},
	}
	if !r.thread.do(func() { pid, err = syscall.ForkExec(path, []string{path}, attr) }) {
		return 0, errStopping
	}
	return pid, err
}

// wait waits for a time, and reports whether the context has not ended.
func wait(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// unstarted says why a plugin could not be started.
func unstarted(path string, err error) error {
	folder, name := filepath.Split(path)
	code, why := uint(cni.CodeIO), err.Error()
	switch {
	case errors.Is(err, unix.ETXTBSY):
		code, why = cni.CodeTryAgain, "somebody writes its file: "+why
	case errors.Is(err, unix.ENOENT):
		why = "its file or the interpreter that its file names is not there: " + why
	case errors.Is(err, unix.ENOEXEC):
		why = "its file is no program of this machine, and no script that begins with #!: " + why
	case errors.Is(err, unix.EACCES):
		why = "it is not executable, or its file system is mounted with noexec: " + why
	case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.ENOMEM):
		code = cni.CodeTryAgain
	}
	return cni.Errorf(code, wire.MsgUnrunable, "starting %s of %s: %s", name, filepath.Clean(folder), why)
}

// kill kills the process group. It must not be called after reap: the id may be another's then.
func (p *process) kill() { _ = unix.Kill(-p.pid, unix.SIGKILL) } // ESRCH: nobody is left in the group

// finish waits until the plugin ends, and kills it when the time is over or ctx ends. The answer lacks
// what was before the start. If the kernel keeps the plugin alive, finish returns nevertheless, with
// Lingers, and the caller has to call reap once p.exited is closed.
func (p *process) finish(ctx context.Context, timeout time.Duration) wire.Answer {
	a := wire.Answer{Exit: -1}
	select {
	case <-p.exited:
	case <-p.patient.after(timeout):
		a.TimedOut = true
		p.kill()
	case <-ctx.Done():
		p.kill()
	}
	if (a.TimedOut || ctx.Err() != nil) && !p.ends(p.patient.killing) {
		a.Lingers = true
		a.Ran = time.Since(p.began)
		return a
	}
	a.Ran = time.Since(p.began)
	status := p.reap(a.TimedOut || ctx.Err() != nil)
	if status.Signaled() {
		a.Signal = status.Signal().String()
	} else {
		a.Exit = status.ExitStatus()
	}
	p.drain()
	a.Stdout, a.Printed, a.Stderr = p.streams.stdout.kept, p.streams.stdout.written, p.streams.stderr.kept
	return a
}

// ends waits for the process's end for a time.
func (p *process) ends(limit time.Duration) bool {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-p.exited:
		return true
	case <-timer.C:
		return false
	}
}

// reap takes the status of the process, which has ended. cut says that nobody of its group may go on.
func (p *process) reap(cut bool) (status unix.WaitStatus) {
	if cut {
		p.kill() // children that it had before it died
	}
	for {
		if _, err := unix.Wait4(p.pid, &status, 0, nil); err != unix.EINTR {
			return status
		}
	}
}

// drain waits for the end of the output, but not for children that keep it open.
func (p *process) drain() {
	_ = p.streams.in.SetWriteDeadline(time.Now()) // nobody reads it any more
	end := time.Now().Add(p.patient.draining)
	for _, f := range []*os.File{p.streams.out, p.streams.err} {
		_ = f.SetReadDeadline(end)
	}
	<-p.streams.done
	p.streams.close()
}

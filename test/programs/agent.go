package programs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/api/client"
	"github.com/berth-net/berth/internal/root"
)

// patience is how long an agent may take to serve.
const patience = 2 * time.Minute

// Agent is a berthd that can be killed and started again.
type Agent struct {
	Root  string         // its --root
	API   *client.Client // talks to it
	bin   string         // folder of berthd and berth
	pools []string       // each NAME=CIDR,...
	cmd   *exec.Cmd
	ended chan struct{} // closed when cmd has been waited for
}

// StartAgent starts the berthd of a folder with its files below root, and
// returns when it serves requests. After an error, too, it has to be stopped.
func StartAgent(ctx context.Context, bin, rootDir string, pools ...string) (*Agent, error) {
	a := &Agent{Root: rootDir, API: client.New(root.Dir(rootDir).Socket()), bin: bin, pools: pools}
	if err := os.MkdirAll(rootDir, 0o700); err != nil {
		return a, err
	}
	return a, a.Start(ctx)
}

// Start starts the process, again if it was stopped or killed, and waits until
// it serves.
func (a *Agent) Start(ctx context.Context) error {
	args := []string{"--root", a.Root}
	for _, p := range a.pools {
		args = append(args, "--pool", p)
	}
	log, err := os.OpenFile(a.Log(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	a.cmd = exec.Command(filepath.Join(a.bin, "berthd"), args...)
	a.cmd.Stdout, a.cmd.Stderr = log, log
	if err := a.cmd.Start(); err != nil {
		return fmt.Errorf("starting berthd: %w", err)
	}
	a.ended = make(chan struct{})
	go func(cmd *exec.Cmd, ended chan struct{}) { cmd.Wait(); close(ended) }(a.cmd, a.ended)
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if h, err := a.API.Health(ctx); err == nil && h.Serving {
			return nil
		}
		select {
		case <-a.ended:
			return fmt.Errorf("berthd ended: %s\n%s", a.cmd.ProcessState, a.lastWords())
		case <-ctx.Done():
			return ctx.Err()
		default:
		}
	}
	return fmt.Errorf("berthd does not serve requests\n%s", a.lastWords())
}

// Log is the file that has what the agent printed.
func (a *Agent) Log() string { return filepath.Join(a.Root, "berthd.log") }

// lastWords is the end of the agent's log.
func (a *Agent) lastWords() string {
	raw, _ := os.ReadFile(a.Log())
	lines := bytes.Split(bytes.TrimSpace(raw), []byte("\n"))
	return string(bytes.Join(lines[max(0, len(lines)-10):], []byte("\n")))
}

// Kill is SIGKILL; the process is gone when it returns.
func (a *Agent) Kill() error { return a.end(unix.SIGKILL) }

// Stop is SIGTERM; an error says that the agent did not end by that. Stopping
// what does not run is nothing.
func (a *Agent) Stop() error {
	a.API.Close()
	return a.end(unix.SIGTERM)
}

// Signal sends a signal to the process, such as SIGSTOP.
func (a *Agent) Signal(signal unix.Signal) error { return a.cmd.Process.Signal(signal) }

// Freeze sends SIGSTOP, and waits until every thread has come out of its system call and
// has stopped.
func (a *Agent) Freeze() error {
	if err := a.Signal(unix.SIGSTOP); err != nil {
		return err
	}
	for {
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", a.cmd.Process.Pid))
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
	state := strings.TrimSpace(string(raw[bytes.LastIndexByte(raw, ')')+1:])) // proc_pid_stat(5)
	return err == nil && !strings.HasPrefix(state, "T")
}

func (a *Agent) end(signal unix.Signal) error {
	if a.ended == nil {
		return nil
	}
	if err := a.cmd.Process.Signal(signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("sending %s to berthd: %w", signal, err)
	}
	select {
	case <-a.ended:
		return nil
	case <-time.After(30 * time.Second):
		a.cmd.Process.Kill()
		<-a.ended
		return fmt.Errorf("berthd did not end within 30 s of %s", signal)
	}
}

// Resident is the process's VmRSS in bytes.
func (a *Agent) Resident() (int64, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", a.cmd.Process.Pid))
	if err != nil {
		return 0, fmt.Errorf("reading resident memory: %w", err)
	}
	_, after, _ := strings.Cut(string(status), "\nVmRSS:")
	value, _, _ := strings.Cut(after, " kB\n")
	kb, err := strconv.ParseInt(strings.TrimSpace(value), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("reading resident memory: %w", err)
	}
	return kb << 10, nil
}

// CPU is the processor time that the process has taken, user and system, in
// steps of 10 ms (proc_pid_stat(5)).
func (a *Agent) CPU() (time.Duration, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", a.cmd.Process.Pid))
	if err != nil {
		return 0, fmt.Errorf("reading processor time: %w", err)
	}
	_, after, _ := strings.Cut(string(stat), ") ") // the name may have blanks
	fields := strings.Fields(after)
	if len(fields) < 13 {
		return 0, fmt.Errorf("reading processor time: %q", stat)
	}
	var ticks int64
	for _, f := range fields[11:13] { // utime, stime
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("reading processor time: %w", err)
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond, nil
}

// Berth runs the CLI on the agent's root and returns what it prints. An exit
// code other than 0 is an error.
func (a *Agent) Berth(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, filepath.Join(a.bin, "berth"), append([]string{"--root", a.Root}, args...)...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return string(out), fmt.Errorf("berth %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return string(out), nil
}

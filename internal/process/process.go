// Package process runs berthd as a process that can be killed and started again, for the demo
// and for tests.
package process

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/api/client"
	"github.com/berth-net/berth/internal/root"
)

// patience is how long an agent may take to end when it is told to.
const patience = 30 * time.Second

// Agent is a berthd that can be killed and started again.
type Agent struct {
	Root string         // its --root
	API  *client.Client // talks to it
	Attr *syscall.SysProcAttr

	bin   string   // folder of berthd
	pools []string // each NAME=CIDR,...
	cmd   *exec.Cmd
	ended chan struct{} // closed when cmd.Wait has returned
}

// New returns the agent of a root folder. The agent does not run yet. bin is the folder of
// berthd.
func New(bin, rootDir string, pools ...string) *Agent {
	return &Agent{Root: rootDir, API: client.New(root.Dir(rootDir).Socket()), bin: bin, pools: pools}
}

// Start starts the process, also again after it was stopped or killed, and waits until it
// serves. It fails if ctx ends before.
func (a *Agent) Start(ctx context.Context) error {
	cmd, err := a.command()
	if err != nil {
		return err
	}
	defer cmd.Stdout.(*os.File).Close()
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("starting berthd: %w", err)
	}
	ended := make(chan struct{})
	a.cmd, a.ended = cmd, ended
	go func() { _ = cmd.Wait(); close(ended) }() // ProcessState says how it ended
	for {
		if h, err := a.API.Health(ctx); err == nil && h.Serving {
			return nil
		}
		select {
		case <-ended:
			return fmt.Errorf("berthd ended: %s", cmd.ProcessState)
		case <-ctx.Done():
			return fmt.Errorf("berthd does not serve requests: %w", context.Cause(ctx))
		case <-time.After(time.Millisecond):
		}
	}
}

// command returns the command that runs berthd with its pools and with args. The command writes into
// the log file, which the caller closes.
func (a *Agent) command(args ...string) (*exec.Cmd, error) {
	log, err := os.OpenFile(a.Log(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening the agent's log: %w", err)
	}
	args = append([]string{"--root", a.Root}, args...)
	for _, p := range a.pools {
		args = append(args, "--pool", p)
	}
	cmd := exec.Command(filepath.Join(a.bin, "berthd"), args...)
	cmd.Stdout, cmd.Stderr, cmd.SysProcAttr = log, log, a.Attr
	return cmd, nil
}

// Log returns the path of the file that has what the agent printed.
func (a *Agent) Log() string { return filepath.Join(a.Root, "berthd.log") }

// LastWords returns the last 10 lines of the agent's log.
func (a *Agent) LastWords() string {
	raw, _ := os.ReadFile(a.Log())
	lines := bytes.Split(bytes.TrimSpace(raw), []byte("\n"))
	return string(bytes.Join(lines[max(0, len(lines)-10):], []byte("\n")))
}

// Kill sends SIGKILL. The process is gone when Kill returns.
func (a *Agent) Kill() error { return a.end(unix.SIGKILL) }

// Stop sends SIGTERM, and fails if that does not end the agent. It does nothing if the agent
// does not run.
func (a *Agent) Stop() error {
	a.API.Close()
	return a.end(unix.SIGTERM)
}

// Signal sends a signal to the process, such as SIGSTOP.
func (a *Agent) Signal(signal unix.Signal) error { return a.cmd.Process.Signal(signal) }

// PID returns the id of the process that was started last, and ExitCode the exit code with
// which it ended.
func (a *Agent) PID() int      { return a.cmd.Process.Pid }
func (a *Agent) ExitCode() int { return a.cmd.ProcessState.ExitCode() }

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
	case <-time.After(patience):
		a.cmd.Process.Kill()
		<-a.ended
		return fmt.Errorf("berthd did not end within %s of %s", patience, signal)
	}
}

// Remove runs berthd --remove, which gives back what the stopped agent itself holds.
func (a *Agent) Remove() error {
	cmd, err := a.command("--remove")
	if err != nil {
		return err
	}
	defer cmd.Stdout.(*os.File).Close()
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("berthd --remove: %w", err)
	}
	return nil
}

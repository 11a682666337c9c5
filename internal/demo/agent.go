package demo

import (
	"bytes"
	"context"
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

// patience is how long one step may take before the demo gives up.
const patience = 30 * time.Second

// agent is a berthd that can be killed and started again.
type agent struct {
	node *node
	api  *client.Client
	cmd  *exec.Cmd
	gone chan struct{} // closed when cmd has ended
}

func newAgent(n *node) agent {
	return agent{node: n, api: client.New(root.Dir(n.root).Socket())}
}

// command is berthd with the demo's pools and what else is said.
func (a *agent) command(args ...string) (*exec.Cmd, error) {
	log, err := os.OpenFile(a.log(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening the agent's log: %w", err)
	}
	args = append([]string{"--root", a.node.root, "--pool", "default=" + pool4 + "," + pool6}, args...)
	cmd := exec.Command(filepath.Join(a.node.bin, "berthd"), args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}
	return cmd, nil
}

func (a *agent) log() string { return filepath.Join(a.node.dir, "berthd.log") }

// start starts the agent and returns when it serves.
func (a *agent) start(ctx context.Context) error {
	cmd, err := a.command()
	if err != nil {
		return err
	}
	defer cmd.Stdout.(*os.File).Close()
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("starting berthd: %w", err)
	}
	gone := make(chan struct{})
	a.cmd, a.gone = cmd, gone
	go func() { _ = cmd.Wait(); close(gone) }() // ProcessState says how it ended
	return until(ctx, "berthd to serve", func() (bool, error) {
		select {
		case <-gone:
			return false, fmt.Errorf("berthd ended: %s", cmd.ProcessState)
		default:
		}
		h, err := a.api.Health(ctx)
		return err == nil && h.Serving, nil // it is away at first
	})
}

// kill is SIGKILL; the process is gone when it returns. Killing what does not
// run is nothing.
func (a *agent) kill() { a.end(unix.SIGKILL) }

// stop is SIGTERM. An error says that the agent did not end well by it.
func (a *agent) stop() error {
	a.end(unix.SIGTERM)
	if code := a.cmd.ProcessState.ExitCode(); code != 0 {
		return fmt.Errorf("stopping berthd: %s", a.cmd.ProcessState)
	}
	return nil
}

func (a *agent) end(signal unix.Signal) {
	if a.cmd == nil {
		return
	}
	a.api.Close()
	_ = a.cmd.Process.Signal(signal) // fails if it has ended
	select {
	case <-a.gone:
	case <-time.After(patience):
		_ = a.cmd.Process.Kill()
		<-a.gone
	}
}

// remove has the stopped agent give back what it holds itself.
func (a *agent) remove() error {
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

// lastWords is the end of what the agent printed.
func (a *agent) lastWords() string {
	if a.node == nil {
		return ""
	}
	raw, _ := os.ReadFile(a.log())
	lines := bytes.Split(bytes.TrimSpace(raw), []byte("\n"))
	return string(bytes.Join(lines[max(0, len(lines)-8):], []byte("\n")))
}

// until asks, at first often, until the answer is yes, an error, or late.
func until(ctx context.Context, what string, ready func() (bool, error)) error {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("waited %s in vain for %s", patience, what))
	defer cancel()
	for pause := time.Millisecond; ; pause = min(2*pause, 20*time.Millisecond) {
		if ok, err := ready(); ok || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(pause):
		}
	}
}

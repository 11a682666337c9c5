package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/api/client"
	"github.com/berth-net/berth/internal/root"
)

// agent is a berthd of its own root.
type agent struct {
	bin, dir string
	pools    []string
	cmd      *exec.Cmd
	ended    chan struct{} // closed when cmd has been waited for
	api      *client.Client
}

// startAgent starts berthd and returns when it serves requests.
func startAgent(ctx context.Context, bin, dir string, pools []string) (*agent, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	a := &agent{bin: bin, dir: dir, pools: pools, api: client.New(root.Dir(dir).Socket())}
	return a, a.start(ctx)
}

// start starts the process and waits until it serves.
func (a *agent) start(ctx context.Context) error {
	args := []string{"--root", a.dir}
	for _, p := range a.pools {
		args = append(args, "--pool", p)
	}
	log, err := os.OpenFile(a.log(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
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
	for end := time.Now().Add(opTimeout); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if h, err := a.api.Health(ctx); err == nil && h.Serving {
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

func (a *agent) log() string { return filepath.Join(a.dir, "berthd.log") }

// lastWords is the end of the agent's log.
func (a *agent) lastWords() string {
	raw, _ := os.ReadFile(a.log())
	lines := bytes.Split(bytes.TrimSpace(raw), []byte("\n"))
	return string(bytes.Join(lines[max(0, len(lines)-10):], []byte("\n")))
}

// kill is SIGKILL; the process is gone when it returns.
func (a *agent) kill() error { return a.end(unix.SIGKILL) }

// stop ends the agent gracefully, as far as it lets itself be.
func (a *agent) stop() {
	a.api.Close()
	a.end(unix.SIGTERM)
}

func (a *agent) end(signal unix.Signal) error {
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

// resident is the process's VmRSS in bytes.
func (a *agent) resident() (int64, error) {
	value := field(fmt.Sprintf("/proc/%d/status", a.cmd.Process.Pid), "VmRSS")
	kb, err := strconv.ParseInt(strings.TrimSuffix(value, " kB"), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("reading resident memory: %w", err)
	}
	return kb << 10, nil
}

// berth runs the CLI on the agent's root.
func (a *agent) berth(ctx context.Context, args ...string) error {
	cmd := exec.CommandContext(ctx, filepath.Join(a.bin, "berth"), append([]string{"--root", a.dir}, args...)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("berth %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return nil
}

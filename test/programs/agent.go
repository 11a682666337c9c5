package programs

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/berth-net/berth/internal/process"
)

// patience is how long an agent may take to serve.
const patience = 2 * time.Minute

// Agent is a berthd that can be killed and started again.
type Agent struct {
	*process.Agent
	bin string // folder of berthd and berth
}

// StartAgent starts the berthd of a folder with its files below rootDir, and returns when
// it serves requests. The caller has to stop the returned agent, even after an error.
func StartAgent(ctx context.Context, bin, rootDir string, pools ...string) (*Agent, error) {
	a := &Agent{Agent: process.New(bin, rootDir, pools...), bin: bin}
	if err := os.MkdirAll(rootDir, 0o700); err != nil {
		return a, err
	}
	return a, a.Start(ctx)
}

// Start starts the process, again if it was stopped or killed, and waits until
// it serves.
func (a *Agent) Start(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := a.Agent.Start(ctx); err != nil {
		return fmt.Errorf("%w\n%s", err, a.LastWords())
	}
	return nil
}

// Resident returns the process's VmRSS in bytes.
func (a *Agent) Resident() (int64, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", a.PID()))
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

// CPU returns the processor time of the agent and of its helper process, in user and in kernel. Its unit
// is a tick (10 ms).
func (a *Agent) CPU() (time.Duration, error) {
	all, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", a.PID()))
	if err != nil {
		return 0, err
	}
	ticks, err := ticksOf(strconv.Itoa(a.PID()))
	if err != nil {
		return 0, err
	}
	for _, file := range all {
		children, err := os.ReadFile(file)
		if err != nil {
			continue // the thread has ended
		}
		for _, pid := range strings.Fields(string(children)) {
			n, err := ticksOf(pid)
			if err != nil {
				return 0, err
			}
			ticks += n
		}
	}
	return time.Duration(ticks) * 10 * time.Millisecond, nil
}

// ticksOf returns the processor time of a process and of its children that have ended, in ticks.
func ticksOf(pid string) (ticks int64, err error) {
	stat, err := os.ReadFile("/proc/" + pid + "/stat")
	if err != nil {
		return 0, fmt.Errorf("reading processor time: %w", err)
	}
	_, after, _ := strings.Cut(string(stat), ") ") // the name may have blanks
	fields := strings.Fields(after)
	if len(fields) < 15 {
		return 0, fmt.Errorf("reading processor time: %q", stat)
	}
	for _, f := range fields[11:15] { // utime, stime, cutime, cstime
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("reading processor time: %w", err)
		}
		ticks += n
	}
	return ticks, nil
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

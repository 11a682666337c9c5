// Package demo is `berth demo`. It makes a node of its own in fresh namespaces. There the
// real agent and the real plugin attach and detach pods while the agent is killed. At the end
// the demo counts what they leave behind.
//
// The demo runs in two processes. The outer one (enter.go) makes namespaces and runs the
// program again inside. The inner one is the node, and tells the story (story.go). It keeps
// its files on a tmpfs of its own, and its processes die with it. So however the inner process
// ends, every process, mount, link and file of the demo goes with it.
package demo

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"syscall"

	"github.com/berth-net/berth/internal/process"
	"golang.org/x/sys/unix"
)

// ErrResidue says that something was left behind. The demo has printed what was left.
var ErrResidue = errors.New("something is left behind")

// beside lists the programs that the demo runs. They lie beside the running program.
var beside = []string{"berthd", "berth-cni"}

// Run runs the demo and prints it to out. In the outer process an error can be an
// *exec.ExitError: then the inner process has printed why.
func Run(ctx context.Context, out *os.File) error {
	inside := os.Getenv(envInside) != ""
	bin, err := programsFolder()
	if err != nil {
		return err
	}
	if !inside {
		return enter(ctx, out)
	}
	n, err := newNode(bin)
	if err != nil {
		return err
	}
	return tell(ctx, n, newPrinter(out))
}

// programsFolder returns the folder of the running program. It fails if the other programs
// are not there.
func programsFolder() (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("looking for the running program: %w", err)
	}
	dir := filepath.Dir(self)
	for _, name := range beside {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			return "", fmt.Errorf("the demo runs %s, which has to lie beside %s: %w (`make build` builds both)", name, self, err)
		}
	}
	return dir, nil
}

// tell tells the story, and counts what is left at its end.
func tell(ctx context.Context, n *node, p *printer) error {
	// The kernel sends a death signal when the thread ends that started the process.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	s := &story{node: n, printer: p, agent: process.New(n.bin, n.root, "default="+pool4+","+pool6)}
	s.agent.Attr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}
	defer s.agent.Kill()
	err := s.tell(ctx)
	if err != nil && ctx.Err() != nil {
		return errors.New("the demo is interrupted; all of it is gone with its namespaces")
	}
	if err != nil {
		if words := s.agent.LastWords(); words != "" {
			return fmt.Errorf("%w; the agent's last words:\n%s", err, words)
		}
		return err
	}
	for _, line := range s.residue {
		p.printf("  %s\n", line)
	}
	p.printf("residue: %d\n", len(s.residue))
	if len(s.residue) > 0 {
		return ErrResidue
	}
	return nil
}

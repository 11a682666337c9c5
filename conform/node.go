package conform

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Node is a node that plugins run on: a network namespace in place of the host's, and state
// folders.
type Node struct {
	suite *suite
	fd    int // the network namespace
	world int // the network namespace behind the uplinks
	store *store
	bare  []string // the mount points of a node on which no plugin has run yet

	queue *queue // limits calls that run at the same time; nil: calls run one by one

	mu   sync.Mutex
	pods []*Pod
}

// newNode makes a node and, if there is a hook for it, starts the plugins' daemon on the node.
func (s *suite) newNode(ctx context.Context) (*Node, error) {
	store, err := openStore(s.StateDirs)
	if err != nil {
		return nil, err
	}
	n := &Node{suite: s, fd: -1, world: -1, store: store}
	if err := n.boot(ctx); err != nil {
		return nil, errors.Join(err, n.close(ctx))
	}
	return n, nil
}

// boot makes the network namespaces of a node and starts the plugins' daemon.
func (n *Node) boot(ctx context.Context) error {
	err := n.store.boot()
	if err != nil {
		return err
	}
	if n.bare, err = mountPoints(); err != nil {
		return err
	}
	if n.world, err = newNetns(); err != nil {
		return err
	}
	if n.fd, err = newNetns(); err != nil {
		return err
	}
	if err := n.furnish(); err != nil {
		return err
	}
	return n.Hook(ctx, "start")
}

// Do runs a function in the node's network namespace.
func (n *Node) Do(f func() error) error { return inside(n.fd, f) }

// podFiles returns the beginnings of the oracle's lines about the suite's own pods.
func (n *Node) podFiles() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	var lines []string
	for _, p := range n.pods {
		lines = append(lines, "file "+p.Path+" ")
	}
	return lines
}

// Reboot acts on a node like a power failure: it ends every process and network namespace, and
// empties /run. Files elsewhere stay.
func (n *Node) Reboot(ctx context.Context) error {
	if err := n.powerOff(); err != nil {
		return err
	}
	if err := rebootRun(); err != nil {
		return err
	}
	if err := n.suite.anotherBoot(); err != nil {
		return err
	}
	return n.boot(ctx)
}

// powerOff ends processes and namespaces, and what else plugins have made that a reboot ends.
func (n *Node) powerOff() error {
	_ = unix.Kill(-1, unix.SIGKILL) // ESRCH: there is no process
	var errs []error
	for _, p := range n.pods {
		errs = append(errs, p.Remove())
	}
	n.pods = nil
	for _, fd := range []*int{&n.fd, &n.world} {
		if *fd >= 0 {
			errs = append(errs, unix.Close(*fd))
			*fd = -1
		}
	}
	return errors.Join(append(errs, unmountBut(n.bare), removeShared())...)
}

// close ends a node.
func (n *Node) close(ctx context.Context) error {
	err := n.Hook(ctx, "stop")
	return errors.Join(err, n.powerOff(), rebootRun(), n.store.close())
}

// hookTime is how long a hook may take.
const hookTime = 30 * time.Second

// Hook runs the hook program of that name on the node, if there is such a program.
func (n *Node) Hook(ctx context.Context, name string) error {
	path := filepath.Join(n.suite.HookDir, name)
	if _, err := os.Stat(path); n.suite.HookDir == "" || err != nil || n.fd < 0 {
		return nil
	}
	if err := os.MkdirAll(suiteDir, 0o755); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, hookTime)
	defer cancel()
	return n.Do(func() error {
		cmd := exec.CommandContext(ctx, path)
		cmd.Env = append(os.Environ(), "CNI_PATH="+n.suite.BinDir)
		cmd.Dir = "/"
		out, err := os.CreateTemp(suiteDir, "hook-*") // a daemon would hold a pipe open
		if err != nil {
			return err
		}
		defer os.Remove(out.Name())
		defer out.Close()
		cmd.Stdout, cmd.Stderr = out, out
		if err := cmd.Run(); err != nil {
			said, _ := os.ReadFile(out.Name())
			return fmt.Errorf("hook %s: %w: %s", path, err, short(said))
		}
		return nil
	})
}

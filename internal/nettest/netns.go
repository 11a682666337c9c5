package nettest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/kernel/ns"
)

// Pod makes a network namespace as a runtime does for a pod: bound to a path, which its Ref
// has, and with lo down. The test's end deletes it, if the test has not done so.
func Pod(t testing.TB) *ns.Netns {
	t.Helper()
	Need(t)
	return create(t, "pod-*")
}

// Node makes the network namespace of a further node, with lo up: for tests
// of several nodes, or of one that reboots. Files and mounts are shared with
// the test's own node.
func Node(t testing.TB) *ns.Netns {
	t.Helper()
	Need(t)
	n := create(t, "node-*")
	if err := n.Do(LoopbackUp); err != nil {
		t.Fatalf("nettest: %v", err)
	}
	return n
}

// Delete ends a Pod or Node as a runtime does: it unmounts the namespace, removes its path
// and closes its descriptor. A second Delete does nothing.
func Delete(t testing.TB, n *ns.Netns) {
	t.Helper()
	if err := n.Delete(); err != nil {
		t.Errorf("nettest: %v", err)
	}
}

// create is `ip netns add` with a name made of pattern.
func create(t testing.TB, pattern string) *ns.Netns {
	t.Helper()
	f, err := os.CreateTemp(netnsDir, pattern)
	if err != nil {
		t.Fatalf("nettest: %v", err)
	}
	f.Close()
	n, err := ns.New(f.Name())
	if err != nil {
		t.Fatalf("nettest: %v", err)
	}
	t.Cleanup(func() { Delete(t, n) })
	return n
}

// trampoline is the Args[0] with which this program only enters the namespace at Args[1]
// and then becomes the program at Args[2].
const trampoline = "nettest-enter"

// Command is exec.Command for a process inside a Node or Pod, in the test's
// own mount namespace (`ip netns exec` without its mounts).
func Command(at *ns.Netns, name string, args ...string) *exec.Cmd {
	cmd := exec.Command(name, args...)
	if cmd.Err != nil {
		return cmd
	}
	cmd.Args = append([]string{trampoline, at.Ref().Path, cmd.Path}, cmd.Args...)
	cmd.Path = "/proc/self/exe"
	return cmd
}

// jump enters the namespace at args[0] and becomes the program args[1], with
// args[2:] as its arguments. It returns only if that fails.
func jump(args []string) error {
	if len(args) < 3 {
		return errors.New("no program to run")
	}
	at, err := ns.Open(args[0])
	if err != nil {
		return err
	}
	runtime.LockOSThread()
	if err := unix.Setns(at.Fd(), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("entering %s: %w", args[0], err)
	}
	return fmt.Errorf("running %s: %w", args[1], syscall.Exec(args[1], args[2:], os.Environ()))
}

// Package nettest runs tests in a node of their own: fresh network and mount namespaces
// that the whole test process and its children live in, so that no test can touch the
// machine it runs on. It works for root and, by a user namespace, for any other user.
//
//	func TestMain(m *testing.M) { nettest.Main(m) }
//
//	func TestLink(t *testing.T) {
//		nettest.Need(t)
//		before := nettest.Snapshot(t, nil)
//		pod := nettest.Pod(t)
//		...
//		nettest.Same(t, before, nettest.Snapshot(t, nil), "left behind")
//	}
package nettest

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/kernel/ns"
)

// Environment variables.
const (
	// envRequired, set to 1, turns every skip of Need and Program into a failure.
	envRequired = "NETTEST_REQUIRED"
	// envHost identifies the network namespace that the tests left, in hostID's form. A
	// process that has this variable is in the node already.
	envHost = "NETTEST_HOST"
	// envState is "fresh" before the node is furnished, "ready" afterwards,
	// or the reason why that failed.
	envState = "NETTEST_STATE"
)

// Main runs a package's tests inside a fresh node, and does not return.
func Main(m *testing.M) {
	Enter()
	os.Exit(m.Run())
}

// Enter moves a test program into a fresh node: it runs the program again inside the node,
// and exits with its exit code. Inside the node, Enter returns. It also returns if no node
// can be made; Need then skips tests with the reason. Enter is for a TestMain that does
// more than Main.
func Enter() {
	if os.Args[0] == trampoline {
		fmt.Fprintln(os.Stderr, "nettest:", jump(os.Args[1:]))
		os.Exit(127)
	}
	if host, ok := os.LookupEnv(envHost); ok {
		settle(host)
		return
	}
	code, err := again()
	if err == nil {
		os.Exit(code)
	}
	node.entered = true
	node.reason = fmt.Sprintf("no fresh namespaces to be had: %v%s", err, hint(err))
}

// hint says what the kernel means by refusing a namespace (clone(2)).
func hint(err error) string {
	switch {
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EUSERS):
		return " (a limit of sysctl user.max_*_namespaces is reached)"
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES), errors.Is(err, unix.EINVAL):
		return " (neither CAP_SYS_ADMIN nor user namespaces; look at the container's seccomp profile," +
			" sysctl kernel.unprivileged_userns_clone and kernel.apparmor_restrict_unprivileged_userns)"
	}
	return ""
}

// again runs this program once more in new namespaces and returns its exit code. An error
// means that the program was not run, or not waited for.
func again() (code int, err error) {
	self, err := ns.Self()
	if err != nil {
		return 0, err
	}
	defer self.Close()
	env := append(os.Environ(), envHost+"="+hostID(self.Ref()), envState+"=fresh")
	runtime.LockOSThread() // Pdeathsig is sent when this thread ends
	defer runtime.UnlockOSThread()

	// This comes before start, so that no signal ends this process and orphans the tests.
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, unix.SIGINT, unix.SIGTERM, unix.SIGQUIT, unix.SIGHUP)
	defer signal.Stop(signals)

	pid, err := start(env)
	if err != nil {
		return 0, err
	}
	child, err := os.FindProcess(pid)
	if err != nil {
		return 0, err
	}
	go func() {
		for s := range signals { // go test sends SIGQUIT for a stack dump
			child.Signal(s)
		}
	}()
	state, err := child.Wait()
	if err != nil {
		return 0, fmt.Errorf("waiting for the tests: %w", err)
	}
	if status := state.Sys().(syscall.WaitStatus); status.Signaled() {
		return 128 + int(status.Signal()), nil // as shells have it
	}
	return state.ExitCode(), nil
}

// start starts this program, with its arguments and open files, in new network
// and mount namespaces, if need be in a new user namespace. The started program ends
// with the calling thread.
func start(env []string) (pid int, err error) {
	files, err := inherited()
	if err != nil {
		return 0, err
	}
	attr := &syscall.ProcAttr{Env: env, Files: files, Sys: ns.Apart(false)}
	if os.Geteuid() == 0 {
		pid, err := syscall.ForkExec("/proc/self/exe", os.Args, attr)
		if !errors.Is(err, unix.EPERM) {
			return pid, err
		}
	}
	attr.Sys = ns.Apart(true)
	return syscall.ForkExec("/proc/self/exe", os.Args, attr)
}

// inherited returns the files that this program was started with, each at its own number,
// and closedFile for the numbers between that have no file. go test talks to its fuzz
// workers over such files.
func inherited() ([]uintptr, error) {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return nil, fmt.Errorf("listing open files: %w", err)
	}
	files := []uintptr{0, 1, 2}
	for _, e := range entries {
		fd, err := strconv.Atoi(e.Name())
		if err != nil || fd < 3 {
			continue
		}
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		if err != nil || flags&unix.FD_CLOEXEC != 0 { // the list's own file, or Go's
			continue
		}
		for len(files) <= fd {
			files = append(files, closedFile)
		}
		files[fd] = uintptr(fd)
	}
	return files, nil
}

// closedFile in syscall.ProcAttr is a descriptor that is closed.
const closedFile = ^uintptr(0)

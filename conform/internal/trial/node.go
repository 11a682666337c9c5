package trial

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// inside is the environment variable of a test program that runs in namespaces of its own.
const inside = "CONFORM_TRIAL_INSIDE"

// refused says why there are no such namespaces.
var refused string

// Main runs a package's tests, by this program again, in a network and a mount namespace of their own; for a plain user also in a
// user namespace.
func Main(m *testing.M) {
	FindSystem()
	if os.Getenv(inside) != "" {
		os.Exit(m.Run())
	}
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), inside+"=yes")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	if os.Geteuid() != 0 {
		cmd.SysProcAttr.Cloneflags |= unix.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	}
	runtime.LockOSThread() // Pdeathsig: the program ends with the thread that started it
	err := cmd.Run()
	var exit *exec.ExitError
	if err == nil || errors.As(err, &exit) {
		os.Exit(cmd.ProcessState.ExitCode())
	}
	refused = fmt.Sprintf("no fresh namespaces to be had: %v", err)
	os.Exit(m.Run())
}

// OnNode runs a function, and the programs that it starts, in a fresh network namespace, which ends with it. The package's TestMain
// is Main.
func OnNode(t testing.TB, f func() error) {
	t.Helper()
	switch {
	case refused != "":
		missing(t, refused)
	case os.Getenv(inside) == "":
		t.Fatal("trial: TestMain has to call trial.Main")
	}
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // for good: the thread ends with the goroutine
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err == nil {
			err = f()
		}
		done <- err
	}()
	Must(t, <-done)
}

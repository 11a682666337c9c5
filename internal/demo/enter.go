package demo

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"time"

	"github.com/berth-net/berth/internal/kernel/ns"
	"golang.org/x/sys/unix"
)

// envInside is set for the inner process. From descriptor 3 on, that process has open files
// of the namespaces that it has left, in the order of apart.
const envInside = "BERTH_DEMO_INSIDE"

// apart lists the namespaces that the demo must not share with the machine, as files of
// /proc/self/ns.
var apart = []string{"net", "mnt"}

// goodbye is how long the inner process may take to end when it is told to.
const goodbye = 5 * time.Second

// enter runs this program again in fresh namespaces: root gets a network and a mount
// namespace, anybody else a user namespace as well. It returns when that process has ended.
func enter(ctx context.Context, out *os.File) error {
	var left []*os.File
	for _, name := range apart {
		f, err := os.Open("/proc/self/ns/" + name)
		if err != nil {
			return fmt.Errorf("looking at the machine's namespaces: %w", err)
		}
		defer f.Close()
		left = append(left, f)
	}
	// The kernel sends a death signal when the thread ends that started the process.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()

	cmd := inner(ctx, out, left, os.Geteuid() != 0)
	err := cmd.Start()
	if os.Geteuid() == 0 && errors.Is(err, unix.EPERM) { // root without CAP_SYS_ADMIN
		cmd = inner(ctx, out, left, true)
		err = cmd.Start()
	}
	if err != nil {
		return fmt.Errorf("making fresh namespaces for the demo: %w%s", err, hint(err))
	}
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("running the demo: %w", err)
	}
	return nil
}

// inner returns the command of the inner process, which ends when ctx does.
func inner(ctx context.Context, out *os.File, left []*os.File, user bool) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "/proc/self/exe", os.Args[1:]...)
	cmd.Args[0] = os.Args[0]
	cmd.Env = append(os.Environ(), envInside+"=1")
	cmd.ExtraFiles = left
	cmd.Stdout, cmd.Stderr = out, os.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(unix.SIGTERM) }
	cmd.WaitDelay = goodbye
	cmd.SysProcAttr = ns.Apart(user)
	return cmd
}

// hint says what a user can do when the kernel refuses namespaces (clone(2)).
func hint(err error) string {
	switch {
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EUSERS):
		return "; a limit of `sysctl user` (max_user_namespaces, max_net_namespaces, ...) is reached"
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES), errors.Is(err, unix.EINVAL):
		return "; run it as root, or allow user namespaces (sysctl kernel.unprivileged_userns_clone=1," +
			" kernel.apparmor_restrict_unprivileged_userns=0; in a container: its seccomp profile)"
	}
	return ""
}

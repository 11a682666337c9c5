package killer

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/kernel/ns"
)

// board is the Args[0] with which this program runs as the first step of a process under a
// killer. Args[1] is the network namespace to enter; then come the program and its
// arguments.
const board = "killer-board"

// The thread that becomes the program has the filter. It has to be the process's first
// thread, or its number would change under the tracer.
func init() {
	if os.Args[0] == board {
		runtime.LockOSThread()
	}
}

// Board becomes the program under a killer, if this process was started for that. Otherwise
// it returns at once. main has to call it first.
func Board() {
	if os.Args[0] == board {
		fmt.Fprintln(os.Stderr, "killer:", goOnBoard(os.Args[1:]))
		os.Exit(127)
	}
}

// goOnBoard returns only if it fails.
func goOnBoard(args []string) error {
	if len(args) < 2 {
		return errors.New("no program to run")
	}
	netns, path, argv := args[0], args[1], args[1:]
	if netns != "" {
		at, err := ns.Open(netns)
		if err != nil {
			return err
		}
		if err := unix.Setns(at.Fd(), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("entering %s: %w", netns, err)
		}
	}
	if err := install(); err != nil {
		return err
	}
	return fmt.Errorf("running %s: %w", path, syscall.Exec(path, argv, os.Environ()))
}

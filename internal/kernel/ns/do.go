package ns

import (
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// Do runs f with its thread in the namespace, as `ip netns exec` does with a
// program, and returns f's error. Sockets that f opens belong to the namespace for
// good; goroutines that f starts run outside of it. The caller needs CAP_SYS_ADMIN,
// in its own user namespace and in the user namespace that owns n.
//
// f runs on a goroutine of its own. If the thread cannot return to the namespace
// that it came from, the thread ends with that goroutine, and Go never uses the thread again. A
// runtime.Goexit in f (a test's FailNow) ends the caller's goroutine too; a panic in f ends the
// program.
func (n *Netns) Do(f func() error) error {
	var (
		err      error
		returned bool
		done     = make(chan struct{})
	)
	go func() {
		defer close(done)
		err = n.inside(f)
		returned = true
	}()
	<-done
	if !returned {
		runtime.Goexit()
	}
	return err
}

// inside is Do on the calling goroutine. It may leave the goroutine's thread locked,
// and in the wrong namespace: the goroutine must end soon after.
func (n *Netns) inside(f func() error) error {
	runtime.LockOSThread()
	home, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("opening the thread's own network namespace: %w", os.NewSyscallError("open", err))
	}
	defer unix.Close(home)
	defer func() {
		// A thread that stays locked ends with its goroutine: Go never reuses it.
		if unix.Setns(home, unix.CLONE_NEWNET) == nil {
			runtime.UnlockOSThread()
		}
	}()
	if err := unix.Setns(n.fd, unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("entering network namespace %s: %w", n.ref, os.NewSyscallError("setns", err))
	}
	return f()
}

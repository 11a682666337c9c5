package runner

import (
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// thread is an operating system's thread that stays in a mount namespace. A process that it starts begins
// in that namespace, and ends with the thread, if it asks for that (PR_SET_PDEATHSIG): the kernel means
// the thread that forked, and not its program. Threads that Go starts meanwhile are not in the
// namespace: Go has another thread start them while one is locked.
type thread struct {
	work  chan func()
	ended chan struct{}
}

// newThread starts a thread in the mount namespace at a path; "": the program's own.
//
//	nsenter --mount=PATH
func newThread(mount string) (*thread, error) {
	t := &thread{work: make(chan func()), ended: make(chan struct{})}
	entered := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		err := enter(mount)
		entered <- err
		if err != nil {
			return
		}
		for {
			select {
			case f := <-t.work:
				f()
			case <-t.ended:
				return
			}
		}
	}()
	if err := <-entered; err != nil {
		return nil, err
	}
	return t, nil
}

// enter moves the calling thread into a mount namespace.
func enter(mount string) error {
	if mount == "" {
		return nil
	}
	fd, err := unix.Open(mount, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("opening the mount namespace: %w", &os.PathError{Op: "open", Path: mount, Err: err})
	}
	defer unix.Close(fd)
	// Threads share their root and working folder, with which the kernel lets nobody change namespaces.
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("parting a thread's folders from the program's: %w", os.NewSyscallError("unshare", err))
	}
	if err := unix.Setns(fd, unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("entering the mount namespace %s: %w", mount, os.NewSyscallError("setns", err))
	}
	return nil
}

// do runs f on the thread, and returns when f has. It returns false if the thread has ended.
func (t *thread) do(f func()) bool {
	done := make(chan struct{})
	task := func() {
		defer close(done)
		f()
	}
	select {
	case t.work <- task:
		<-done
		return true
	case <-t.ended:
		return false
	}
}

// end ends the thread when it has nothing to do. It must be called only once.
func (t *thread) end() { close(t.ended) }

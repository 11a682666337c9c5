// Package helper has a process of its own make the system calls that may never end: the deletions of
// links. The kernel ends neither such a call, by any signal, nor the process whose thread makes the call.
// A daemon that made the call itself could be killed, but would keep its locks as a zombie, and no other
// daemon could start. The helper has no locks, and nobody waits for its end.
//
// The helper runs the same program as its daemon (Run), and ends when its daemon does.
package helper

import (
	"errors"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Name is the helper's argv[0], and its name for ps.
const Name = "berthd-helper"

// patience is how long the helper may take to receive a message. Then Send takes the helper for stopped or
// dead, and kills it. A helper that was killed while the kernel does not answer one of its calls looks as if
// it still ran. While the kernel has not answered, the helper is asked every patience whether it still
// receives messages.
var patience = 10 * time.Second // a test has less

// tries is how many processes Send asks to write a message before it writes the message itself.
const tries = 2

var errUntaken = errors.New("the helper process has not received this")

// lostError says that the helper process has ended, or does not answer, and has not said whether the kernel
// has done what a message asks for.
type lostError struct{ over <-chan struct{} }

func (e *lostError) Error() string {
	return "the helper process has ended, and has not said whether the kernel has done this"
}

// Over returns a channel that is closed when the kernel is no longer at the call (rtnl.Sender).
func (e *lostError) Over() <-chan struct{} { return e.over }

// Helper starts a helper process when it is needed. Its methods may be called concurrently.
type Helper struct {
	// Unhelped is called once, with the reason, when Send has to write a message itself. It must not block,
	// and must be set before Send is called. nil: the Helper tells nobody.
	Unhelped func(error)

	mu     sync.Mutex
	life   *life // the process that runs; nil: none does
	closed bool
	told   bool // Unhelped was called
}

// Send has the helper process write a message to a socket, and returns when the kernel has done what the
// message asks for. The kernel's answer is in the socket then. The caller must not close the socket before.
//
// If no helper process can be started, or none receives the message, Send writes the message itself. If the
// process ends or is stopped after it has received the message, Send returns an error, and nobody knows
// whether the kernel has done what the message asks for. After Close, Send returns os.ErrClosed.
func (h *Helper) Send(socket int, message []byte) error {
	var why error
	for range tries {
		l, err := h.running()
		if errors.Is(err, os.ErrClosed) {
			return err
		}
		if err == nil {
			err = l.send(socket, message)
			if !errors.Is(err, errUntaken) {
				return err
			}
			l.end()
		}
		why = err
	}
	h.tell(why)
	return write(socket, message)
}

// running returns the process, which it starts if there is none.
func (h *Helper) running() (*life, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.closed:
		return nil, os.ErrClosed
	case !able:
		return nil, errors.New("this program cannot be its own helper process")
	case h.life != nil && !h.life.over():
		return h.life, nil
	}
	l, err := start()
	if err == nil {
		h.life = l
	}
	return l, err
}

func (h *Helper) tell(why error) {
	h.mu.Lock()
	first := !h.told
	h.told = true
	h.mu.Unlock()
	if first && h.Unhelped != nil {
		h.Unhelped(why)
	}
}

// Close ends the helper process, and waits for its end, unless the kernel keeps it from ending.
func (h *Helper) Close() {
	h.mu.Lock()
	l := h.life
	h.life, h.closed = nil, true
	h.mu.Unlock()
	if l != nil {
		l.leave()
	}
}

// write writes a message to a connected socket.
func write(socket int, message []byte) error {
	for {
		_, err := unix.Write(socket, message)
		if err != unix.EINTR {
			return os.NewSyscallError("write", err)
		}
	}
}

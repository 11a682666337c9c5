package rtnl

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/berth-net/berth/internal/kernel"
)

const (
	// maxDeletions is how many deletions of links a Conn has under way, including those that the kernel
	// does not answer. Usually there are fewer than 10. A deletion that is not answered keeps a thread.
	maxDeletions = 256

	// prompt is how long Delete waits for the kernel's answer before it looks whether the links are gone.
	prompt = time.Second
)

// Delete sends a request that deletes the links with the given indices (DelLinkAt, DelGroup), and waits
// until the kernel has answered or one of the links is gone. The caller of a DelGroup has to look at each
// link afterwards: one may be gone for another reason.
//
// The kernel answers only when nobody has a reference to the links any more
// (netdev_wait_allrefs_any, Linux net/core/dev.c). By then the links are long gone: they have no name and no
// route, and no packet passes them. A program in a pod can keep a reference to the pod's end for as long as it likes,
// by a packet socket that waits for room, and no signal ends the kernel's wait. In this case Delete
// returns a channel, which is closed when the kernel has answered; otherwise the channel is nil. A Conn
// of Here waits for the answer.
//
// The process that DeleteBy names makes the system call, if there is one: a process whose thread the kernel
// keeps waiting cannot end, and keeps its locks. Deletions have sockets of their own, so that no other
// request waits for them. If the kernel has not answered 256 of them, Delete returns an error of class
// kernel.ErrBusy.
func (c *Conn) Delete(r Request, indices ...int) (lingers <-chan struct{}, err error) {
	if c.single {
		return nil, c.Do(r)
	}
	s, err := c.deletions.take(c)
	if err != nil {
		return nil, err
	}
	answer, lost, ended := make(chan error, 1), make(chan error, 1), make(chan struct{})
	go func() {
		defer close(ended)
		errs, err := s.exchange([]Request{r})
		broken := err != nil
		if !broken {
			err = errs[0]
			c.deletions.give(s)
		}
		if err != nil {
			err = kernel.Classify(fmt.Errorf("%s: %w", r.text, err))
		}
		if call := (lostCall)(nil); errors.As(err, &call) {
			lost <- err
			<-call.Over()
		}
		if broken {
			s.Close()
			c.deletions.give(nil)
		}
		answer <- err
	}()
	late := time.NewTicker(prompt)
	defer late.Stop()
	for {
		var unknown error
		select {
		case err := <-answer:
			return nil, err
		case unknown = <-lost:
		case <-late.C:
		}
		names, err := c.Names(indices...)
		switch {
		case err == nil && slices.Contains(names, ""):
			return ended, nil
		case errors.Is(err, os.ErrClosed):
			return ended, err
		case unknown != nil:
			return nil, unknown
		}
	}
}

// Sender writes requests to netlink sockets. helper.Helper is one.
type Sender interface {
	// Send returns when the kernel has answered the request, by the socket. If it returns earlier, the
	// error is a lostCall.
	Send(socket int, request []byte) error
}

// lostCall is the error of a Sender that does not know any more what becomes of a request. Over is closed
// when the kernel is no longer at it. Until then the request counts as one that the kernel has not answered.
type lostCall interface {
	error
	Over() <-chan struct{}
}

// DeleteBy has s send the requests of Delete. It must be called before Delete is. A Conn of Here sends them
// itself.
func (c *Conn) DeleteBy(s Sender) { c.deletions.sender = s }

// deletions are the sockets for Delete.
type deletions struct {
	sender Sender // nil: the Conn itself
	mu     sync.Mutex
	idle   []*socket
	busy   int
	closed bool
}

// take returns a socket that nobody else uses until give.
func (d *deletions) take(c *Conn) (*socket, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch n := len(d.idle); {
	case d.closed:
		return nil, os.ErrClosed
	case d.busy == maxDeletions:
		return nil, kernel.As(kernel.ErrBusy, fmt.Errorf("the kernel has not answered %d deletions of links, because programs in pods still use the links", d.busy))
	case n > 0:
		s := d.idle[n-1]
		d.idle = d.idle[:n-1]
		d.busy++
		return s, nil
	}
	s, err := c.open()
	if err == nil {
		s.sender = d.sender
		d.busy++
	}
	return s, err
}

// give takes a socket back; nil: the socket is closed.
func (d *deletions) give(s *socket) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.busy--
	switch {
	case s == nil:
	case d.closed || len(d.idle) == maxSockets:
		s.Close()
	default:
		d.idle = append(d.idle, s)
	}
}

// close closes the sockets. It does not wait for deletions that are under way.
func (d *deletions) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	for _, s := range d.idle {
		s.Close()
	}
	d.idle = nil
}

// open opens a socket in the Conn's network namespace.
func (c *Conn) open() (s *socket, err error) {
	err = c.Inside(func() (err error) { s, err = openSocket(c.ctx); return err })
	return s, err
}

package rtnl

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"

	"github.com/berth-net/berth/internal/kernel"
	"github.com/berth-net/berth/internal/kernel/ns"
)

const (
	// maxSockets is how many requests of a Conn are with the kernel at once.
	// rtnetlink does one at a time anyway; those above that wait are deletions,
	// which take 20 ms, most of it outside the lock.
	maxSockets = 8

	// maxRequests is how many requests go into one system call. Their answers
	// must fit a socket's receive buffer (208 KiB by default).
	maxRequests = 32

	// maxDumps is how often a dump is asked for until one is whole.
	maxDumps = 5
)

// Conn is a connection to rtnetlink in one network namespace. All its methods
// may be called at once; a few sockets are shared by all callers, who wait in
// line for one.
type Conn struct {
	at     *ns.Netns // owned by the caller; nil: the process's own
	ref    ns.Ref
	slots  chan *socket // nil: not opened yet
	single bool         // of Here: nobody could tell where a second socket belongs
	closed atomic.Bool
}

// Open connects to the network namespace at, which must stay open for as long
// as the Conn is; nil is the process's own.
func Open(at *ns.Netns) (*Conn, error) {
	c := &Conn{at: at}
	if at == nil {
		self, err := ns.Self()
		if err != nil {
			return nil, err
		}
		defer self.Close()
		c.ref = self.Ref()
	} else {
		c.ref = at.Ref()
	}
	var first *socket
	if err := c.Inside(func() (err error) { first, err = openSocket(); return err }); err != nil {
		return nil, err
	}
	c.fill(maxSockets, first)
	return c, nil
}

// Here connects to the calling thread's network namespace by a single socket:
// for use within ns.Netns.Do, to save entering the namespace once more. The
// Conn works outside of it as well, but for Inside and Ref, until anything goes
// wrong with its socket.
func Here() (*Conn, error) {
	s, err := openSocket()
	if err != nil {
		return nil, err
	}
	c := &Conn{single: true}
	c.fill(1, s)
	return c, nil
}

func (c *Conn) fill(n int, first *socket) {
	c.slots = make(chan *socket, n)
	c.slots <- first
	for range n - 1 {
		c.slots <- nil
	}
}

// Close waits for the requests under way and closes the sockets. Later
// requests fail.
func (c *Conn) Close() error {
	if c.closed.Swap(true) {
		return os.ErrClosed
	}
	for range cap(c.slots) {
		if s := <-c.slots; s != nil {
			s.Close()
		}
	}
	for range cap(c.slots) {
		c.slots <- nil // for those who wait, to be told
	}
	return nil
}

// Ref is the identity of the Conn's network namespace.
func (c *Conn) Ref() ns.Ref { return c.ref }

// Inside runs f with its thread in the Conn's network namespace, as for
// sysctls.
func (c *Conn) Inside(f func() error) error {
	if c.at == nil {
		return f()
	}
	return c.at.Do(f)
}

// Do sends requests, in order, and returns the error of the first that failed.
// The kernel goes on after one that fails.
func (c *Conn) Do(rs ...Request) error {
	for _, err := range c.Each(rs...) {
		if err != nil {
			return err
		}
	}
	return nil
}

// Each sends requests, in order, and returns an answer for each: nil, or what
// went wrong, as kernel.Classify has it, with the request.
func (c *Conn) Each(rs ...Request) []error {
	errs := make([]error, 0, len(rs))
	for len(rs) > 0 {
		n := min(len(rs), maxRequests)
		errs = append(errs, c.each(rs[:n])...)
		rs = rs[n:]
	}
	return errs
}

func (c *Conn) each(rs []Request) []error {
	var errs []error
	broken := c.with(func(s *socket) (err error) { errs, err = s.exchange(rs); return err })
	if broken != nil {
		errs = make([]error, len(rs))
		for i := range errs {
			errs[i] = broken
		}
	}
	for i, err := range errs {
		if err != nil {
			errs[i] = kernel.Classify(fmt.Errorf("%s: %w", rs[i].text, err))
		}
	}
	return errs
}

// with lends f a socket. f's error says that it is of no more use.
func (c *Conn) with(f func(*socket) error) error {
	s := <-c.slots
	if s == nil {
		err := os.ErrClosed
		if !c.closed.Load() && !c.single {
			err = c.Inside(func() (err error) { s, err = openSocket(); return err })
		}
		if err != nil {
			c.slots <- nil
			return err
		}
	}
	err := f(s)
	if err != nil {
		s.Close()
		s = nil
	}
	c.slots <- s
	return err
}

// ErrStop, returned by what is called for each item of a list, ends the list without
// an error. The Conn's socket ends with it, since the rest of the list is on its
// way: a Conn of Here is of no more use then.
var ErrStop = errors.New("that is enough")

// dump asks for a list, again while it changes under way, and decodes its
// items; decode leaves those out that it answers false for, so that what nobody
// wants takes no memory. If no list was whole the last one comes with an error of
// class kernel.ErrInterrupted: items may be missing from it, or double.
func dump[T any](c *Conn, r Request, decode func(body []byte) (T, bool, error)) ([]T, error) {
	var items []T
	err := c.walk(r, func() { items = items[:0] }, func(body []byte) error {
		item, ok, err := decode(body)
		if ok {
			items = append(items, item)
		}
		return err
	})
	if err != nil && !errors.Is(err, kernel.ErrInterrupted) {
		return nil, err
	}
	return items, err
}

// walk asks for a list and calls each for every item of it. While the list
// changes under way it is asked for again, begin is called, and what each has
// seen comes once more. each's error ends it.
func (c *Conn) walk(r Request, begin func(), each func(body []byte) error) error {
	for range maxDumps {
		var interrupted bool
		var failed error
		begin()
		broken := c.with(func(s *socket) (err error) {
			interrupted, failed, err = s.dump(r, each)
			return err
		})
		if errors.Is(broken, ErrStop) {
			return nil
		}
		if err := errors.Join(failed, broken); err != nil {
			return kernel.Classify(fmt.Errorf("%s: %w", r.text, err))
		}
		if !interrupted {
			return nil
		}
	}
	return kernel.As(kernel.ErrInterrupted, fmt.Errorf("%s: changed under way, %d times", r.text, maxDumps))
}

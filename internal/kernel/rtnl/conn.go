package rtnl

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"

	"github.com/berth-net/berth/internal/kernel"
	"github.com/berth-net/berth/internal/kernel/ns"
)

const (
	// maxSockets is how many system calls a Conn makes at once, deletions aside (Delete). rtnetlink
	// works at one request at a time.
	maxSockets = 8

	// maxRequests is how many requests go into one system call. Their answers
	// must fit into a socket's receive buffer (208 KiB by default).
	maxRequests = 32

	// maxDumps is how often a Conn asks for a list that keeps changing while the Conn reads it.
	maxDumps = 5
)

// Conn is a connection to rtnetlink in one network namespace. Its methods may be called
// concurrently: all callers share a few sockets, and wait in line for a socket.
type Conn struct {
	at        *ns.Netns // owned by the caller; nil: the process's own
	ref       ns.Ref
	ctx       context.Context // after its end, all calls fail
	slots     chan *socket    // nil: a socket that is not open
	single    bool            // made by Here, which does not know in which namespace to open another socket
	closed    atomic.Bool
	deletions deletions
}

// Open connects to the network namespace at, which must stay open for as long
// as the Conn is; nil is the process's own.
func Open(at *ns.Netns) (*Conn, error) { return OpenFor(context.Background(), at) }

// OpenFor is Open for a Conn that works under one context: after the context's end, all its calls fail.
func OpenFor(ctx context.Context, at *ns.Netns) (*Conn, error) {
	c := &Conn{at: at, ctx: ctx}
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
	first, err := c.open()
	if err != nil {
		return nil, err
	}
	c.fill(maxSockets, first)
	return c, nil
}

// Here connects to the calling thread's network namespace by a single socket. Here is meant for use
// inside ns.Netns.Do, where it saves entering the namespace once more. The Conn, apart from Inside and
// Ref, works outside of Do as well. Once anything goes wrong with its socket the Conn is of no more
// use.
func Here() (*Conn, error) {
	ctx := context.Background()
	s, err := openSocket(ctx)
	if err != nil {
		return nil, err
	}
	c := &Conn{single: true, ctx: ctx}
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

// Close waits for the requests under way, deletions aside, and closes the sockets. Later
// requests fail.
func (c *Conn) Close() error {
	if c.closed.Swap(true) {
		return os.ErrClosed
	}
	c.deletions.close()
	for range cap(c.slots) {
		if s := <-c.slots; s != nil {
			s.Close()
		}
	}
	for range cap(c.slots) {
		c.slots <- nil // callers that still wait for a socket get os.ErrClosed
	}
	return nil
}

// Ref returns the identity of the Conn's network namespace.
func (c *Conn) Ref() ns.Ref { return c.ref }

// Inside runs f with its thread in the Conn's network namespace, such as to read sysctls
// there.
func (c *Conn) Inside(f func() error) error {
	if c.at == nil {
		return f()
	}
	return c.at.Do(f)
}

// Do sends requests, in order, and returns the error of the first that failed.
// The kernel still does the requests after the failed one.
func (c *Conn) Do(rs ...Request) error {
	for _, err := range c.Each(rs...) {
		if err != nil {
			return err
		}
	}
	return nil
}

// Each sends requests, in order, and returns an answer for each: nil, or an error that
// kernel.Classify has classified and that names the request.
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

// with lends f a socket. If f returns an error, with closes the socket, and a later call
// opens a new one.
func (c *Conn) with(f func(*socket) error) error {
	s := <-c.slots
	if s == nil {
		err := os.ErrClosed
		if !c.closed.Load() && !c.single {
			s, err = c.open()
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

// ErrStop ends a list without an error, if the caller's function for each item returns it. The Conn
// then closes the socket, because the rest of the list is still on its way: a Conn of Here is of no
// more use after that.
var ErrStop = errors.New("that is enough")

// dump asks for a list and decodes its items. It leaves out items for which decode answers false, so
// that unwanted items take no memory. If the list changes while dump reads it, dump asks for the list
// again. If the list also changed at the last try, dump returns the last list with an error of class
// kernel.ErrInterrupted: the list may lack items, or have items twice.
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

// walk asks for a list and calls each for every item of it. If the list changed while walk read it,
// walk asks for the list again and calls each for all items once more. It calls begin before every
// list. An error of each ends the walk.
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
	return kernel.As(kernel.ErrInterrupted, fmt.Errorf("%s: the list changed while it was read, %d times", r.text, maxDumps))
}

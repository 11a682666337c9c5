package nft

import (
	"os"
	"sync"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/kernel"
)

// conns has sockets that are open as long as somebody watches. Whoever closes a
// netfilter socket after anybody's transaction waits until the kernel has freed
// what that took away, 10 to 20 ms, and holds up all other transactions of the
// namespace meanwhile (nft_rcv_nl_event). A table that has to be put back at once
// is written before `nft flush ruleset` has closed its socket, or after that wait.
type conns struct {
	tables *Tables

	mu      sync.Mutex
	watches int
	writer  *writer // nil: somebody uses it, or nobody watches
	reader  *netlink.Conn
	ports   map[uint32]bool // of the open writers: who asked for a transaction, its news tell
}

// writer is a connection for transactions.
type writer struct {
	*netlink.Conn
	port uint32 // its netlink address in the namespace: nobody else has it while it is open
}

// watch opens the sockets. What cannot be opened now is opened when it is used.
func (c *conns) watch() {
	writer, werr := c.tables.openWriter()
	reader, rerr := c.tables.openReader()
	c.mu.Lock()
	c.watches++
	c.mu.Unlock()
	if werr == nil {
		c.giveWriter(writer)
	}
	if rerr == nil {
		c.giveReader(reader)
	}
}

// unwatch closes them, if nobody else watches.
func (c *conns) unwatch() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.watches--; c.watches > 0 {
		return
	}
	if c.writer != nil {
		c.close(c.writer)
	}
	if c.reader != nil {
		_ = c.reader.Close()
	}
	c.writer, c.reader = nil, nil
}

// takeWriter returns a connection for one transaction. If that has succeeded
// it may be given back, or else it has to be closed: an error in it stays.
func (c *conns) takeWriter() (*writer, error) {
	c.mu.Lock()
	w := c.writer
	c.writer = nil
	c.mu.Unlock()
	if w != nil {
		return w, nil
	}
	return c.tables.openWriter()
}

func (c *conns) giveWriter(w *writer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.watches > 0 && c.writer == nil {
		c.writer = w
		return
	}
	c.close(w)
}

// dropWriter closes a connection that has failed.
func (c *conns) dropWriter(w *writer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.close(w)
}

// close closes a writer: news of it that nobody has read yet count as others'. c.mu is
// held.
func (c *conns) close(w *writer) {
	_ = w.Close()
	delete(c.ports, w.port)
}

// own reports whether it was one of the open writers that a transaction's news are of.
func (c *conns) own(port uint32) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ports[port]
}

// takeReader returns a socket for requests, which giveReader takes back if all of
// them were answered.
func (c *conns) takeReader() (*netlink.Conn, error) {
	c.mu.Lock()
	r := c.reader
	c.reader = nil
	c.mu.Unlock()
	if r != nil {
		return r, nil
	}
	return c.tables.openReader()
}

func (c *conns) giveReader(r *netlink.Conn) {
	c.mu.Lock()
	if c.watches > 0 && c.reader == nil {
		c.reader, r = r, nil
	}
	c.mu.Unlock()
	if r != nil {
		_ = r.Close()
	}
}

// openWriter opens a connection for transactions.
func (t *Tables) openWriter() (*writer, error) {
	c, err := t.openReader()
	if err != nil {
		return nil, err
	}
	w := &writer{Conn: c}
	if w.port, err = portOf(c); err == nil {
		err = c.SetWriteBuffer(sendBuffer)
	}
	if err != nil {
		_ = c.Close()
		return nil, kernel.Classify(err)
	}
	t.conns.mu.Lock()
	defer t.conns.mu.Unlock()
	if t.conns.ports == nil {
		t.conns.ports = map[uint32]bool{}
	}
	t.conns.ports[w.port] = true
	return w, nil
}

// portOf returns a socket's netlink address.
func portOf(c *netlink.Conn) (port uint32, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, err
	}
	var at unix.Sockaddr
	if cerr := raw.Control(func(fd uintptr) { at, err = unix.Getsockname(int(fd)) }); cerr != nil {
		return 0, cerr
	}
	if at, ok := at.(*unix.SockaddrNetlink); ok {
		port = at.Pid
	}
	return port, os.NewSyscallError("getsockname", err)
}

// openReader opens a socket for requests.
func (t *Tables) openReader() (*netlink.Conn, error) {
	c, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: t.at.Fd()})
	return c, kernel.Classify(err)
}

package nft

import (
	"os"
	"sync"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/kernel"
)

// conns keeps sockets open as long as somebody watches, because closing a netfilter socket
// is slow. After anybody's transaction, a program that closes a netfilter socket waits 10 to 20 ms
// until the kernel has freed what the transaction deleted, and all other transactions of the namespace
// wait for that program meanwhile (nft_rcv_nl_event). Thanks to the open sockets, an agent that puts
// its table back after `nft flush ruleset` can be done before nft closes its socket; if the agent is
// later, it waits those 10 to 20 ms.
type conns struct {
	tables *Tables

	mu      sync.Mutex
	watches int
	writer  *writer         // nil: a caller uses the writer, opening it failed, or nobody watches
	reader  *netlink.Conn   // nil: for the same reasons
	ports   map[uint32]bool // the ports of the open writers; the news of a transaction name the port of the socket that made it
}

// writer is a connection for transactions.
type writer struct {
	*netlink.Conn
	port uint32 // its netlink address in the namespace, which no other socket has while the writer is open
}

// watch opens the sockets. If watch cannot open a socket now, a caller opens it when it needs the
// socket.
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

// unwatch closes the sockets if nobody watches any more.
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

// takeWriter returns a connection for one transaction. If the transaction succeeded, the
// caller gives the connection back by giveWriter. Otherwise the caller closes the connection by
// dropWriter, because unread answers may be left in it.
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

// close closes a writer. News of its transactions that nobody has read yet count as
// others' from then on. The caller holds c.mu.
func (c *conns) close(w *writer) {
	_ = w.Close()
	delete(c.ports, w.port)
}

// own reports whether a port, which news of a transaction name, is an open writer's port.
func (c *conns) own(port uint32) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ports[port]
}

// reading calls read with a socket for requests, and calls read again if the tables change meanwhile
// (atOnce).
func (c *conns) reading(read func(*netlink.Conn) error) error {
	return c.asking(func(r *netlink.Conn) error {
		_, err := atOnce(r, func() error { return read(r) })
		return err
	})
}

// asking calls ask once, with a socket for requests.
func (c *conns) asking(ask func(*netlink.Conn) error) error {
	r, err := c.takeReader()
	if err != nil {
		return err
	}
	if err := ask(r); err != nil {
		r.Close()
		return err
	}
	c.giveReader(r)
	return nil
}

// takeReader returns a socket for requests. The caller gives the socket back by giveReader if the
// kernel has answered all requests, and closes the socket otherwise.
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

// openReader opens a socket for requests. (netlink.Config.NetNS would do this without Do, but
// github.com/mdlayher/socket v0.5.1 loses the error of socket(2) then, and the program crashes.)
func (t *Tables) openReader() (c *netlink.Conn, err error) {
	err = t.at.Do(func() (err error) { c, err = netlink.Dial(unix.NETLINK_NETFILTER, nil); return err })
	if err != nil {
		return nil, kernel.Classify(err)
	}
	return c, nil
}

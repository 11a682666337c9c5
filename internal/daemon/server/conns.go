package server

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/berth-net/berth/internal/cni"
)

// How many connections there may be at once. Only root and the daemon's own user can
// connect to the socket, so its bound is for their programs that have a bug.
const (
	maxConns        = backlog + 256 // for all requests that wait for a place, and 256 more
	maxMetricsConns = 64            // by TCP, where anybody may be able to connect
)

// When the server gives memory back to the system: a flood of requests leaves the heap
// large, and the runtime keeps most of it for minutes.
const (
	floodConns = 256              // connections at once
	calmTime   = 10 * time.Second // how long the flood must have been over
)

// crowdAgain is the shortest time between two log lines that say that there are too many
// connections.
const crowdAgain = time.Minute

// conns counts a server's connections and bounds them. If there are too many connections, the
// server closes a connection that is between two requests, to make room for the new one; if there
// is no such connection, the server tells the new one to try again, and closes it.
type conns struct {
	most int
	// fair says that the clients may be each other's enemies. Then a new connection always gets a
	// place: it takes the place of the oldest connection of the source address that has the most
	// connections, even if that connection is in use. A source cannot keep others away, not even by
	// answers that it does not read. A bound for each source would need to know how many
	// sources there are.
	fair     bool
	giveBack func() // gives memory back to the system
	log      *slog.Logger

	mu     sync.Mutex
	open   int
	idle   map[net.Conn]bool // between two requests
	aged   []sourced         // the connections, if fair, without those that boundFairly has closed; the oldest first
	said   time.Time         // when the log last said that there are too many; zero: never
	unsaid int               // connections that were closed since, because there were too many
	flood  bool              // there was a flood since memory was last given back
	calm   *time.Timer       // runs from a flood's end until memory is given back
}

// sourced is a connection with the address that it comes from.
type sourced struct {
	conn   net.Conn
	source netip.Addr
	end    context.CancelFunc // ends the contexts of its requests
}

func newConns(most int, log *slog.Logger) *conns {
	return &conns{most: most, giveBack: debug.FreeOSMemory, log: log, idle: map[net.Conn]bool{}}
}

// state is the server's ConnState.
func (c *conns) state(conn net.Conn, state http.ConnState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch state {
	case http.StateNew:
		c.open++
		if c.fair {
			c.boundFairly()
		} else {
			c.bound(conn)
		}
		c.watchFlood()
	case http.StateIdle:
		c.idle[conn] = true
	case http.StateActive:
		delete(c.idle, conn)
	case http.StateClosed, http.StateHijacked:
		delete(c.idle, conn)
		c.forget(conn)
		c.open--
		c.watchFlood()
	}
}

// bound closes a connection if there are too many. The HTTP server notices that, and
// reports the connection to state as closed, like any other. The caller holds c.mu.
func (c *conns) bound(fresh net.Conn) {
	if c.open <= c.most {
		return
	}
	for conn := range c.idle {
		delete(c.idle, conn)
		_ = conn.Close() // no client waits for an answer on it
		return
	}
	c.warn("connections are refused: too many are open")
	body, _ := encode(cni.Errorf(cni.CodeTryAgain, "too many connections", "%d are open", c.most)) // strings and a number: it cannot fail
	_ = fresh.SetWriteDeadline(time.Now().Add(time.Second))
	_, _ = fmt.Fprintf(fresh, "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s",
		len(body), body) // a client that has left needs no answer
	_ = fresh.Close()
}

// context returns the context of a connection's requests. The HTTP server calls it just before
// it says that the connection is new.
func (c *conns) context(ctx context.Context, conn net.Conn) context.Context {
	if !c.fair {
		return ctx
	}
	ctx, end := context.WithCancel(ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.aged = append(c.aged, sourced{conn, sourceOf(conn), end})
	return ctx
}

// boundFairly closes a connection of the source that has the most connections, if there are too
// many connections. The caller holds c.mu.
func (c *conns) boundFairly() {
	if len(c.aged) <= c.most {
		return
	}
	count := map[netip.Addr]int{}
	for _, s := range c.aged {
		count[s.source]++
	}
	first := 0
	for i, s := range c.aged {
		if count[s.source] > count[c.aged[first].source] {
			first = i
		}
	}
	c.warn("connections are closed for new ones: too many are open", "source", c.aged[first].source)
	abort(c.aged[first].conn)    // the HTTP server notices, and reports the connection to state as closed
	c.forget(c.aged[first].conn) // the HTTP server may not notice the end while it works at an answer
}

// forget forgets a connection that is closed. The caller holds c.mu.
func (c *conns) forget(conn net.Conn) {
	i := slices.IndexFunc(c.aged, func(s sourced) bool { return s.conn == conn })
	if i >= 0 {
		c.aged[i].end() // otherwise the server's context would remember it
		c.aged = slices.Delete(c.aged, i, i+1)
	}
}

// sourceOf returns the address that a connection comes from, or the zero address if the connection
// has no IP address.
func sourceOf(conn net.Conn) netip.Addr {
	a, err := netip.ParseAddrPort(conn.RemoteAddr().String())
	if err != nil {
		return netip.Addr{}
	}
	return a.Addr().Unmap()
}

// warn says in the log, once in crowdAgain, that there are too many connections. The caller
// holds c.mu.
func (c *conns) warn(what string, about ...any) {
	c.unsaid++
	if now := time.Now(); c.said.IsZero() || now.Sub(c.said) >= crowdAgain {
		c.log.Warn(what, append([]any{"most", c.most, "closed", c.unsaid}, about...)...)
		c.said, c.unsaid = now, 0
	}
}

// watchFlood notes when a flood begins and when it is over. The caller holds c.mu.
func (c *conns) watchFlood() {
	switch {
	case c.open >= floodConns:
		c.flood = true
		if c.calm != nil {
			c.calm.Stop()
			c.calm = nil
		}
	case c.flood && c.calm == nil:
		c.calm = time.AfterFunc(calmTime, c.endFlood)
	}
}

// endFlood gives memory back, unless the next flood has begun.
func (c *conns) endFlood() {
	c.mu.Lock()
	over := c.calm != nil
	if over {
		c.flood, c.calm = false, nil
	}
	c.mu.Unlock()
	if over {
		c.giveBack()
	}
}

package server

import (
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"runtime/debug"
	"sync"
	"time"

	"github.com/berth-net/berth/internal/cni"
)

// How many connections there may be at once. Only root and the daemon's own user can
// connect to the socket, so its bound is for programs of theirs that have a bug.
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

// conns counts a server's connections and bounds them. When there are too many,
// one that is between two requests is closed for the new one; if there is none, the
// new one is told to try again and closed.
type conns struct {
	most     int
	giveBack func() // gives memory back to the system
	log      *slog.Logger

	mu    sync.Mutex
	open  int
	idle  map[net.Conn]bool // between two requests
	flood bool              // there was a flood since memory was last given back
	calm  *time.Timer       // runs from a flood's end until memory is given back
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
		c.bound(conn)
		c.watchFlood()
	case http.StateIdle:
		c.idle[conn] = true
	case http.StateActive:
		delete(c.idle, conn)
	case http.StateClosed, http.StateHijacked:
		delete(c.idle, conn)
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
	c.log.Warn("connection refused: too many connections are open", "most", c.most)
	body, _ := encode(cni.Errorf(cni.CodeTryAgain, "too many connections", "%d are open", c.most)) // strings and a number: it cannot fail
	_ = fresh.SetWriteDeadline(time.Now().Add(time.Second))
	_, _ = fmt.Fprintf(fresh, "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s",
		len(body), body) // a client that has left needs no answer
	_ = fresh.Close()
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

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

// How many connections there may be at once. Only root connects to the socket:
// the bound is for programs of his that have a bug.
const (
	maxConns        = backlog + 256 // who waits for a place has one, and so have others
	maxMetricsConns = 64            // by TCP, where anybody may be let in
)

// When memory is given back: a flood of requests leaves the heap large, and the
// runtime keeps most of it for minutes.
const (
	floodConns = 256              // connections at once
	calmTime   = 10 * time.Second // that the flood has been over
)

// conns counts a server's connections and bounds them. When there are too many,
// one that is between two requests is closed for the new one; if there is none, the
// new one is told to try again and closed.
type conns struct {
	most     int
	giveBack func() // memory, to the system
	log      *slog.Logger

	mu    sync.Mutex
	open  int
	idle  map[net.Conn]bool // between two requests
	flood bool              // there were many since memory was given back
	calm  *time.Timer       // set while a flood is over
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

// bound closes a connection if there are too many. The server notices it, and
// reports it as closed like any other. c.mu is held.
func (c *conns) bound(fresh net.Conn) {
	if c.open <= c.most {
		return
	}
	for conn := range c.idle {
		delete(c.idle, conn)
		_ = conn.Close() // nobody waits for it
		return
	}
	c.log.Warn("connection refused: there are too many", "most", c.most)
	body, _ := encode(cni.Errorf(cni.CodeTryAgain, "too many connections", "%d are open", c.most)) // strings and a number
	_ = fresh.SetWriteDeadline(time.Now().Add(time.Second))
	_, _ = fmt.Fprintf(fresh, "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s",
		len(body), body) // who has left needs no answer
	_ = fresh.Close()
}

// watchFlood notes when a flood begins and when it is over. c.mu is held.
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

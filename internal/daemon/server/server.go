// Package server is the HTTP side of a daemon: the unix socket, who may connect, how long a
// request may take and how many may execute at once, the metrics, and the answers to wrong
// requests. The daemon gives the server routes, which do the daemon's work. The server knows
// nothing else of the daemon.
//
// A request finds its Route (route.go), goes through serve.go (panics, deadlines,
// a place in queue.go), and then to the route's Call.
package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/berth-net/berth/internal/daemon/socket"
	"github.com/berth-net/berth/internal/root"
	"github.com/berth-net/berth/internal/trace"
)

// Limits that a request cannot change.
const (
	headTime  = 5 * time.Second // to send a request's header
	idleTime  = time.Minute     // between requests of a connection
	maxHeader = 32 << 10        // bytes
	backlog   = 4096            // requests that wait for a place
	maxAsides = 1024            // requests that wait without a place (turn.Aside)
	grace     = 5 * time.Second // to read or write, beyond a request's deadline
)

// ErrServed says that a daemon answers at a root already.
var ErrServed = socket.ErrServed

// Unserved returns ErrServed if a daemon listens at a root, whether it answers or not, and
// else nil.
func Unserved(dir root.Dir) error { return socket.Unserved(dir.Socket()) }

// Options are a server's parts.
type Options struct {
	// Routes are what the daemon does. The server adds GET /v1/health and
	// GET /metrics. Lanes have their turns in the order in which the routes
	// name them.
	Routes []Route
	// Elsewhere is part of the answer to a request whose path no route has, such as where
	// the paths are listed.
	Elsewhere string
	// Status returns the HTTP status of an error's code; nil is OwnStatus. An unknown path is
	// answered with 404 and code 4 (noPath), whatever Status says.
	Status func(code uint) int
	// Metrics is what the daemon's parts report to.
	Metrics *Metrics
	// Kinds are the names of the daemon's kinds, whose figures begin with 0.
	Kinds []string
	// Collectors are read at each scrape from Open on: before it, their figures are not
	// known.
	Collectors []Collector
	// Tracer makes spans of Calls; nil: none are made.
	Tracer *trace.Tracer
	// Concurrency is how many Calls with a lane execute at once; 0 is 64. A
	// quarter of it is for deletions alone, and a quarter for all others.
	Concurrency int
	Log         *slog.Logger
}

// Server serves a daemon's API.
type Server struct {
	metrics *Metrics
	tracer  *trace.Tracer
	log     *slog.Logger
	routes  []Route
	status  func(code uint) int // of an answer
	router  router
	queue   *queue
	readers chan struct{} // a token for each reader of a stream
	asides  chan struct{} // a token for each request that waits without its place

	ctx  context.Context // of all requests; Shutdown ends it when Shutdown waits for requests no longer
	stop context.CancelCauseFunc
	// stopping is closed when Shutdown begins: streams end.
	stopping chan struct{}
	stopOnce sync.Once

	dir    root.Dir
	socket atomic.Pointer[socket.Socket]
	first  chan struct{} // closed when there is a socket
	http   *http.Server
	tcp    atomic.Pointer[http.Server] // serves metrics by TCP; nil: nothing does
}

// New returns a server on which requests wait until Open.
func New(o Options) *Server {
	o.Concurrency = cmp.Or(o.Concurrency, 64)
	s := &Server{
		metrics:  o.Metrics,
		tracer:   o.Tracer,
		log:      o.Log,
		status:   o.Status,
		readers:  make(chan struct{}, maxReaders),
		asides:   make(chan struct{}, maxAsides),
		stopping: make(chan struct{}),
		first:    make(chan struct{}),
	}
	if s.status == nil {
		s.status = OwnStatus
	}
	s.ctx, s.stop = context.WithCancelCause(context.Background())
	s.routes = append(slices.Clip(o.Routes), s.own()...)
	s.router = newRouter(s.routes, o.Elsewhere)
	s.queue = newQueue(o.Concurrency, backlog, lanesOf(s.routes)...)
	s.metrics.expect(o.Kinds)
	s.metrics.watch(s, o.Collectors)
	s.http = s.newHTTP(s, newConns(maxConns, s.log))
	return s
}

// Routes lists all that the server answers: the daemon's routes, and its own.
func (s *Server) Routes() []Route { return slices.Clone(s.routes) }

// newHTTP returns an HTTP server whose connections c bounds.
func (s *Server) newHTTP(h http.Handler, c *conns) *http.Server {
	return &http.Server{
		Handler:           h,
		ConnState:         c.state,
		ConnContext:       c.context,
		ReadHeaderTimeout: headTime,
		IdleTimeout:       idleTime,
		MaxHeaderBytes:    maxHeader,
		ErrorLog:          slog.NewLogLogger(s.log.Handler(), slog.LevelWarn),
		BaseContext:       func(net.Listener) context.Context { return s.ctx },
	}
}

// Listen makes the daemon's socket in dir: from then on, clients wait instead of finding
// nobody. The daemon has to open (and so lock) its ledger before, since the lock alone
// decides which of two daemons serves a root. After any error but ErrServed the daemon can go on
// without a socket, and call Relisten.
func (s *Server) Listen(dir root.Dir) error {
	s.dir = dir
	sock, err := socket.Listen(dir, root.SocketName, s.log)
	if err != nil {
		return fmt.Errorf("listening on %s: %w", dir.Socket(), err)
	}
	s.heard(sock)
	return nil
}

// heard has Serve go on with a socket.
func (s *Server) heard(sock *socket.Socket) {
	if s.socket.Swap(sock) == nil {
		close(s.first)
	}
}

// Relisten makes the socket anew if somebody has removed it, or Listen could not make it,
// and reports whether it did so. Clients that are connected notice nothing. A daemon calls
// Relisten while it serves, and never at the same time as another Relisten, Listen or
// Shutdown.
func (s *Server) Relisten() (again bool, err error) {
	old := s.socket.Load()
	if old != nil && old.There() {
		return false, nil
	}
	sock, err := socket.Listen(s.dir, root.SocketName, s.log)
	if err != nil && old == nil {
		return false, fmt.Errorf("listening on %s: %w", s.dir.Socket(), err) // Listen's own words
	}
	if err != nil {
		return false, fmt.Errorf("listening on %s again: %w", s.dir.Socket(), err)
	}
	s.heard(sock)
	if old != nil {
		_ = old.Close() // Serve goes on with the new one
	}
	return true, nil
}

// Serve answers requests on the socket, once there is one, until Shutdown; then it returns
// nil.
func (s *Server) Serve() error {
	select {
	case <-s.first:
	case <-s.stopping:
		return nil
	}
	for {
		sock := s.socket.Load()
		err := s.http.Serve(sock)
		switch {
		case errors.Is(err, http.ErrServerClosed):
			return nil
		case sock == s.socket.Load():
			return fmt.Errorf("serving on %s: %w", s.dir.Socket(), err)
		}
	}
}

// Open lifts the restore fence: Calls with a lane are executed from now on.
func (s *Server) Open() { s.queue.open() }

// Shutdown ends serving. It removes the socket, tells the requests that wait to try again,
// ends the streams, and waits for Calls under way until ctx ends. Then it ends their
// contexts, closes their connections, and returns ctx's error. It may be called again with
// a longer ctx.
func (s *Server) Shutdown(ctx context.Context) error {
	s.stopOnce.Do(func() { close(s.stopping) })
	s.queue.stop()
	if sock := s.socket.Load(); sock != nil {
		sock.Remove()
	}
	if tcp := s.tcp.Load(); tcp != nil {
		_ = tcp.Close() // nobody needs the error: at worst a scrape of metrics has failed
	}
	err := s.http.Shutdown(ctx)
	if errors.Is(err, net.ErrClosed) { // Relisten has just closed the old socket: that is no failure
		err = nil
	}
	s.stop(errStopping)
	if err != nil {
		_ = s.http.Close() // ends what is left; the reason is in err
		return fmt.Errorf("waiting for requests to end: %w", err)
	}
	return nil
}

package server

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/http"

	"github.com/berth-net/berth/api"
)

// ServeMetrics serves /metrics and /v1/health, and nothing else, on a TCP address until
// Shutdown. An addr without a host is on the loopback. ServeMetrics returns the address
// with its port. A daemon may call ServeMetrics until a call succeeds, before Shutdown.
//
// Anybody may be able to connect, pods too. So no request costs a line in the log, except at the
// level debug, and a client with many connections keeps no other client from having one (see
// conns.fair).
func (s *Server) ServeMetrics(addr string) (net.Addr, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, fmt.Errorf("metrics address %q: %w", addr, err)
	}
	host = cmp.Or(host, "127.0.0.1")
	l, err := listenTCP(net.JoinHostPort(host, port))
	if err != nil {
		return nil, fmt.Errorf("listening for metrics: %w", err)
	}
	open := map[string]bool{api.PathMetrics: true, api.PathHealth: true}
	conns := newConns(maxMetricsConns, s.log)
	conns.fair = true
	tcp := s.newHTTP(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !open[r.URL.Path] {
			s.write(w, s.toAnswer(noPath(r.URL.Path, "this address serves only "+api.PathMetrics+" and "+api.PathHealth)))
			return
		}
		// Requests that come here have no deadline: a deadline that had passed would be a failure,
		// and a line in the log.
		for _, h := range []string{api.HeaderStarted, api.HeaderRunning, api.HeaderDeadline} {
			r.Header.Del(h)
		}
		s.ServeHTTP(w, r)
	}), conns)
	s.tcp.Store(tcp)
	go func() {
		if err := tcp.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			s.log.Error("the metrics server has ended", "address", addr, "error", err)
		}
	}()
	return l.Addr(), nil
}

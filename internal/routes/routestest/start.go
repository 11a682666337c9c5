package routestest

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/berth-net/berth/api/client"
	"github.com/berth-net/berth/internal/daemon/server"
	"github.com/berth-net/berth/internal/events"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/root"
	"github.com/berth-net/berth/internal/routes"
)

// Agent is a server of fake verbs on its socket.
type Agent struct {
	*server.Server
	Verbs   *Verbs
	Events  *events.Hub
	Metrics *server.Metrics
	Dir     root.Dir
	Client  *client.Client
}

// New returns a server of v in dir that does not listen yet. It logs to the
// test's own log.
func New(t testing.TB, dir root.Dir, v *Verbs, concurrency int) *Agent {
	a := &Agent{Verbs: v, Events: events.NewHub(events.Remember), Metrics: server.NewMetrics(), Dir: dir, Client: client.New(dir.Socket())}
	a.Server = routes.New(v, a.Events, server.Options{
		Metrics: a.Metrics, Concurrency: concurrency, Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
	})
	return a
}

// Start serves v on a socket until the test ends. The server is not open yet.
func Start(t testing.TB, v *Verbs) *Agent {
	t.Helper()
	a := New(t, root.Dir(t.TempDir()), v, 0)
	a.Run(t)
	return a
}

// Run serves until the test ends, or Shutdown.
func (a *Agent) Run(t testing.TB) {
	t.Helper()
	nettest.Must(t, a.Listen(a.Dir))
	ended := make(chan error, 1)
	go func() { ended <- a.Serve() }()
	t.Cleanup(func() {
		a.Client.Close()
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := a.Shutdown(ctx); err != nil {
			t.Errorf("shutdown: %v", err)
		}
		if err := <-ended; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
}

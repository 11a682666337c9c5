package daemon

import (
	"github.com/berth-net/berth/internal/daemon/server"
	"github.com/berth-net/berth/internal/events"
)

// Reports is where a daemon's parts say what happens, for those who ask its API.
type Reports struct {
	Events  *events.Hub
	Metrics *server.Metrics
}

// NewReports returns reports of which nothing is known yet.
func NewReports() Reports {
	return Reports{Events: events.NewHub(events.Remember), Metrics: server.NewMetrics()}
}

// Hear lets options report here.
func (r Reports) Hear(o *Options) { o.Event, o.Observe = r.Events.Publish, r.Metrics.ObserveKind }

// ServerOptions are those of a daemon's server, on which concurrency verbs execute at once.
func (d *Daemon) ServerOptions(r Reports, concurrency int) server.Options {
	r.Metrics.ObserveLedger(d.Ledger.Stats)
	return server.Options{Metrics: r.Metrics, Concurrency: concurrency, Log: d.Log}
}

package daemon

import (
	"github.com/berth-net/berth/internal/daemon/server"
	"github.com/berth-net/berth/internal/events"
)

// Reports collects what happens in a daemon, for the clients of its API.
type Reports struct {
	Events  *events.Hub
	Metrics *server.Metrics
}

// NewReports returns empty reports.
func NewReports() Reports {
	return Reports{Events: events.NewHub(events.Remember), Metrics: server.NewMetrics()}
}

// Hear sets the functions of o that report events and operations, so that they report to r.
func (r Reports) Hear(o *Options) {
	o.Event, o.Observe, o.Meter = r.Events.Publish, r.Metrics.ObserveKind, r.Metrics
}

// ServerOptions returns the options of the daemon's server. concurrency is how many verbs
// it executes at once.
func (d *Daemon) ServerOptions(r Reports, concurrency int) server.Options {
	r.Metrics.ObserveLedger(d.Ledger.Stats)
	r.Metrics.ObserveTraces(d.Tracer.Stats)
	o := server.Options{Metrics: r.Metrics, Tracer: d.Tracer, Concurrency: concurrency, Log: d.Log}
	for _, k := range d.Engine.Kinds {
		o.Kinds = append(o.Kinds, k.Name())
	}
	return o
}

// Package server has the old names of what is in internal/daemon/server and
// internal/routes, for who has not moved yet. It goes with the last of them.
package server

import (
	"github.com/berth-net/berth/internal/daemon/server"
	"github.com/berth-net/berth/internal/events"
	"github.com/berth-net/berth/internal/root"
	"github.com/berth-net/berth/internal/routes"

	"log/slog"
)

// MaxDeadline is server.MaxDeadline.
const MaxDeadline = server.MaxDeadline

// What has moved.
type (
	Server  = server.Server
	Metrics = server.Metrics
	When    = server.When
	Verbs   = routes.Verbs
	Options struct {
		Verbs       Verbs
		Events      *events.Hub
		Metrics     *Metrics
		Concurrency int
		Log         *slog.Logger
	}
)

// New is routes.New.
func New(o Options) *Server {
	return routes.New(o.Verbs, o.Events, server.Options{Metrics: o.Metrics, Concurrency: o.Concurrency, Log: o.Log})
}

// NewMetrics is server.NewMetrics.
func NewMetrics() *Metrics { return server.NewMetrics() }

// Unserved is server.Unserved.
func Unserved(dir root.Dir) error { return server.Unserved(dir) }

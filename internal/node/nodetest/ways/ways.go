// Package ways is the part of a node in memory that leads to other nodes: routes to their pods, and the tunnel.
package ways

import (
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/berth-net/berth/internal/kinds/noderoute"
)

// Ways are the ways from a node to other nodes. The node's lock guards them.
type Ways struct {
	routes map[way]gateway
	tunnel *device // nil: there is none
}

// New returns a node's ways at its boot.
func New() *Ways { return &Ways{routes: map[way]gateway{}} }

// Door is an agent's way to a node in memory, with the node's lock.
type Door interface {
	sync.Locker
	// Step makes one change of the node, as a system call does, with the node's lock.
	Step(sort, what string, f func() error) error
}

// Routes are the routes to other nodes' pods, for an agent.
type Routes struct {
	*Ways
	Door
	Metric uint32
}

// Tunnel has the kinds of the tunnel, for an agent.
type Tunnel struct {
	*Ways
	Door
	Instance string
}

// Empty reports whether there are no ways.
func (w *Ways) Empty() bool { return len(w.routes) == 0 && w.tunnel == nil }

// String shows all ways.
func (w *Ways) String() string { return fmt.Sprint(w.routes, w.tunnel) }

// Copy returns the ways as they are now.
func (w *Ways) Copy() *Ways {
	c := &Ways{routes: maps.Clone(w.routes)}
	if w.tunnel != nil {
		d := *w.tunnel
		d.nodes = slices.Clone(d.nodes)
		c.tunnel = &d
	}
	return c
}

// Change lets somebody change the tunnel's device.
func (w *Ways) Change() { w.tunnel.changed = true }

// Untunnel deletes the tunnel's device, and what leads by it.
func (w *Ways) Untunnel() {
	w.tunnel = nil
	for way, to := range w.routes {
		if to.tunnel {
			delete(w.routes, way)
		}
	}
}

// Foreign puts somebody else's route in the place of a hold's. intact returns an error if that route is not there any more.
func (w *Ways) Foreign(s *noderoute.Spec) (intact func() error) {
	w.routes[wayOf(s)] = gateway{}
	return func() error {
		if to, there := w.routes[wayOf(s)]; !there || to.via.IsValid() {
			return fmt.Errorf("the route to %s is gone", s.CIDR)
		}
		return nil
	}
}

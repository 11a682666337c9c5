package nodetest

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel/nft"
	"github.com/berth-net/berth/internal/kinds/poolroute"
	"github.com/berth-net/berth/internal/kinds/shaping"
	"github.com/berth-net/berth/internal/node/nodetest/ways"
)

// State is everything that holds can leave behind on a node.
type State struct {
	Links map[string]Link
	Ways  map[netip.Addr]string     // host routes: the name of the link that a route leads over
	Flows map[netip.Addr]string     // connection tracking: the name of the link that the address's traffic took
	Pools map[poolroute.Spec]bool   // pools' routes; false: the route is somebody else's
	Nodes *ways.Ways                // to other nodes
	Table *nft.Ruleset              // nil: there is none
	Ports map[hold.ID][]nft.Mapping // host ports in the table, by their owners

	Limits map[string]shaping.Spec // of links that other plugins have made, by the names of these
}

// State returns the present state of the node.
func (w *Node) State() State {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := State{
		Links: map[string]Link{}, Ways: map[netip.Addr]string{},
		Flows: maps.Clone(w.flows), Pools: maps.Clone(w.pools), Nodes: w.nodes.Copy(), Ports: maps.Clone(w.ports), Limits: maps.Clone(w.limits),
	}
	for name, l := range w.links {
		s.Links[name] = l.copied()
	}
	for a, l := range w.ways {
		s.Ways[a] = l.Name
	}
	if w.table != nil {
		table := *w.table
		s.Table = &table
	}
	return s
}

// Empty reports whether nothing is left on the node.
func (s State) Empty() bool {
	return len(s.Links)+len(s.Ways)+len(s.Flows)+len(s.Pools)+len(s.Ports)+len(s.Limits) == 0 && s.Nodes.Empty() && s.Table == nil
}

func (s State) String() string {
	var all strings.Builder
	fmt.Fprintf(&all, "table %v\n", s.Table)
	for _, name := range slices.Sorted(maps.Keys(s.Links)) {
		fmt.Fprintln(&all, s.Links[name])
	}
	for _, a := range slices.SortedFunc(maps.Keys(s.Ways), netip.Addr.Compare) {
		fmt.Fprintf(&all, "route %s dev %s\n", a, s.Ways[a])
	}
	fmt.Fprint(&all, s.Flows, s.Pools, s.Nodes)
	for _, id := range slices.Sorted(maps.Keys(s.Ports)) {
		fmt.Fprintf(&all, "\nhost ports of %s: %v", id, s.Ports[id])
	}
	for _, name := range slices.Sorted(maps.Keys(s.Limits)) {
		fmt.Fprintf(&all, "\nlimits of %s: %+v", name, s.Limits[name])
	}
	return all.String()
}

func (l Link) String() string { return fmt.Sprintf("%+v in %s: %+v", l.show(), l.Pod.ref, l.End) }

// copied returns a copy of the link as it is now. The caller holds the node's mu.
func (l *Link) copied() Link {
	c := *l
	c.End.Addrs = slices.Clone(l.End.Addrs)
	return c
}

// Link returns a link by its name.
func (w *Node) Link(name string) (l Link, there bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if on := w.links[name]; on != nil {
		return on.copied(), true
	}
	return Link{}, false
}

// LinkTo returns the link that leads to an interface of the namespace at a path.
func (w *Node) LinkTo(path, ifname string) (l Link, there bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if p := w.pods[path]; p != nil && p.ends[ifname] != nil {
		return p.ends[ifname].copied(), true
	}
	return Link{}, false
}

// Reachable reports whether packets get through a link.
func (w *Node) Reachable(name string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	l := w.links[name]
	return l != nil && w.reachable(l)
}

// reachable is Reachable for a link that is there. The caller holds w.mu.
func (w *Node) reachable(l *Link) bool {
	if !l.Up || !l.End.Up {
		return false
	}
	return w.table == nil || l.Group < w.table.CutLow || l.Group > w.table.CutHigh
}

// Lacks says what is missing of a pod's link, of the interface in the pod, or of its
// addresses and their routes. It returns "" if nothing is missing.
func (w *Node) Lacks(name string, p *Pod, ifname string, addrs []netip.Addr) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	l := w.links[name]
	switch {
	case l == nil:
		return "it is gone"
	case l.Pod != p || p.ends[ifname] != l:
		return "it leads elsewhere"
	case !w.reachable(l):
		return fmt.Sprintf("it is cut off: %s", l)
	case !slices.Equal(l.End.Addrs, addrs):
		return fmt.Sprintf("has %v in the pod, not %v", l.End.Addrs, addrs)
	}
	for _, a := range addrs {
		if w.ways[a] != l {
			return fmt.Sprintf("there is no way to %s", a)
		}
	}
	return ""
}

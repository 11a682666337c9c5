package nodetest

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/kinds/poolroute"
)

// This file has what other programs, users and pods do to a node. None of that goes through
// an agent's plan. An agent that listens hears of it.

// Put makes a link that no agent of this run has made, and a route over it to each address
// that has no route yet. The pod's end of the link is in a namespace to which no path
// leads.
func (w *Node) Put(l Link, addrs ...netip.Addr) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.index++
	l.Index, l.Pod = w.index, &Pod{node: w, boot: w.boots, ends: map[string]*Link{l.Ifname: &l}}
	w.links[l.Name] = &l
	for _, a := range addrs {
		if w.ways[a] == nil {
			w.ways[a] = &l
		}
	}
}

// SetDown sets a link down, as a plugin does that cuts off a pod without the agent, or as
// somebody does who should not. It reports whether the link is there.
//
//	ip link set NAME down
func (w *Node) SetDown(name string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	l := w.links[name]
	if l != nil {
		l.Up = false
		w.unroute(l)
		w.tell(rtnl.News{Change: rtnl.LinkDown, Link: l.show()})
	}
	return l != nil
}

// SetLink changes a link, if it is there.
//
//	ip link set NAME ...
func (w *Node) SetLink(name string, change func(*Link)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if l := w.links[name]; l != nil {
		change(l)
		w.tell(rtnl.News{Change: rtnl.LinkSet, Link: l.show()})
	}
}

// Reshape limits a link's end on the node otherwise, or not at all, if the link is there.
//
//	tc qdisc replace dev NAME root ...
func (w *Node) Reshape(name string, r rtnl.Rate) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if l := w.links[name]; l != nil {
		l.Shape = r
		w.tell(rtnl.News{Change: rtnl.Reshaped, Link: rtnl.Link{Index: l.Index}, Shape: r})
	}
}

// Repolice limits what a link's end on the node lets in otherwise, or not at all, if the link is
// there and has a limit: only Police makes what an agent takes for one, so nobody else gives a link its first.
//
//	tc filter replace dev NAME ingress ...
func (w *Node) Repolice(name string, r rtnl.Rate) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if l := w.links[name]; l != nil && l.Police != (rtnl.Rate{}) {
		l.Police = r
		w.tell(rtnl.News{Change: rtnl.Repoliced, Link: rtnl.Link{Index: l.Index}, Shape: r})
	}
}

// DeleteLink deletes a link, if it is there.
//
//	ip link del NAME
func (w *Node) DeleteLink(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if l := w.links[name]; l != nil {
		w.unlink(l)
	}
}

// DeleteRoute deletes the host route to an address, if it leads over a link.
//
//	ip route del ADDRESS dev NAME
func (w *Node) DeleteRoute(a netip.Addr, name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if l := w.ways[a]; l != nil && l.Name == name {
		delete(w.ways, a)
		w.tell(rtnl.News{Change: rtnl.RouteGone, Route: rtnl.Route{Dst: netip.PrefixFrom(a, a.BitLen()), Index: l.Index}})
	}
}

// DeletePoolRoute deletes a pool's route, if it is there.
//
//	ip route del unreachable CIDR metric METRIC
func (w *Node) DeletePoolRoute(s poolroute.Spec) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, there := w.pools[s]; there {
		delete(w.pools, s)
		w.tell(rtnl.News{Change: rtnl.RouteGone, Route: rtnl.Route{Dst: s.CIDR, Unreachable: true, Metric: s.Metric}})
	}
}

// Flush deletes all tables.
//
//	nft flush ruleset
func (w *Node) Flush() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.table, w.ports = nil, nil
	select {
	case w.news <- struct{}{}:
	default:
	}
}

// Traffic lets every reachable pod send, so that connection tracking has entries of the pod's
// addresses from now on. If another link has left an entry of such an address, the entry
// leads the packets that link's way: astray says so.
func (w *Node) Traffic() (astray []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for a, l := range w.ways {
		if !w.reachable(l) || !slices.Contains(l.End.Addrs, a) {
			continue
		}
		if was, ok := w.flows[a]; ok && was != l.Name {
			astray = append(astray, fmt.Sprintf("traffic of %s, which has %s, takes the way of %s", l.Name, a, was))
		}
		w.flows[a] = l.Name
	}
	return astray
}

// Notice tells the agent that something is new in the queue of deletions.
func (w *Node) Notice() {
	w.mu.Lock()
	changed := w.noticed
	w.mu.Unlock()
	if changed != nil {
		changed()
	}
}

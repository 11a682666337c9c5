// Package node is an agent's door to its node: all that the agent asks of the kernel, and
// changes there, goes through a Node. Open opens the real kernel; package nodetest has a
// node in memory.
package node

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/berth-net/berth/internal/daemon"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel/nft"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/kinds"
	"github.com/berth-net/berth/internal/kinds/link"
	"github.com/berth-net/berth/internal/stamp"
)

// Node is an agent's door to its node. Its fields do not change once the agent is open.
type Node struct {
	daemon.Place
	kinds.Marks

	Here *ns.Netns // the network namespace, open; nil if the node is in memory

	Conn    Conn
	Tracked kinds.Tracked
	// Equip makes the doors of the kinds. Mark calls it once the node has its marks.
	Equip func(*Node, Hooks) error
	kinds.Doors

	// Noticed arranges that changed is called whenever something new is in the queue of
	// deletions. watch is the queue's own watch (deletions.Queue.Watch).
	Noticed func(watch func(changed func()) error, changed func()) error
	// OpenNetns opens the network namespace at a path. It fails as ns.Ref.Open does.
	OpenNetns func(ns.Ref) (ns.Handle, error)
	// Ends looks for the pods' ends of links of the node, as link.FindEnds does.
	Ends func(self ns.Ref, wanted []link.WantedEnd) map[string]link.PodEnd
	// Sysctl reads a sysctl of the node's network namespace, and SetSysctl sets one.
	Sysctl    func(name string) (string, error)
	SetSysctl func(name, value string) error
	// Shut closes what Open opened.
	Shut func() error
}

// Hooks are functions that the doors of the kinds call.
type Hooks = kinds.Hooks

// Monitor tells of changes that others may have made.
type Monitor = kinds.Monitor

// Conn is rtnetlink, for everything that does not belong to a kind.
type Conn interface {
	Veths(keep func(rtnl.Link) (bool, error)) ([]rtnl.Link, error)
	Links(keep func(rtnl.Link) (bool, error)) ([]rtnl.Link, error)
	Link(name string) (rtnl.Link, error)
	Routes(rtnl.RouteFilter) ([]rtnl.Route, error)
	Neighbours() ([]rtnl.Neighbour, error)
	Shaped() ([]rtnl.Qdisc, error)
	Policed(indices ...int) (map[int]rtnl.Rate, error)
	UplinkMTU() (int, error)
	Uses() ([]rtnl.Use, error)
	Reached([]netip.Addr) []netip.Addr
	Hops([]netip.Addr) []rtnl.Hop
	AskAnew([]netip.Addr) error
	Names(indices ...int) ([]string, error)
	Close() error
}

// Mark sets the marks of the agent's instance, and makes the doors of the kinds.
func (n *Node) Mark(instance string, h Hooks) error {
	groups, err := stamp.GroupsOf(instance)
	if err != nil {
		return err
	}
	metric, err := stamp.MetricOf(instance)
	if err != nil {
		return err
	}
	n.Marks = kinds.Marks{Instance: instance, Groups: groups, Metric: metric}
	h.OpenNetns, h.Forget = n.OpenNetns, n.forgetLed
	return n.Equip(n, h)
}

// forgetLed has the kernel forget the connections that host ports have led to pods.
func (n *Node) forgetLed(ports []nft.Mapping) error {
	none := func(string, netip.AddrPort) (to netip.AddrPort, mapped bool) { return to, false }
	return n.Tracked.ForgetMapped(none, func(protocol string, at, to netip.AddrPort) bool {
		return slices.ContainsFunc(ports, func(m nft.Mapping) bool { return m.Leads(protocol, at, to) })
	})
}

// PortsIn makes the door to the host ports in the node's table.
func (n *Node) PortsIn(maps kinds.Maps, h Hooks) kinds.Ports {
	return kinds.OpenPorts(maps, n.Marks, h)
}

// OpenOthers makes the doors to what is not in the node's own network namespace: other plugins, files, the API server, and the insides of pods.
func (n *Node) OpenOthers(h Hooks) {
	n.Delegates, n.Infos, n.Statuses, n.Gateways = kinds.OpenDelegates(h), kinds.OpenInfos(h), kinds.OpenStatuses(h), kinds.OpenGateways()
}

// Kinds lists the kinds of hold that an agent of this node can have (kinds.Doors).
func (n *Node) Kinds() hold.Kinds { return n.Doors.List(n.Tracked, n.Conn) }

// Identify says which network namespace is at a path. It fails as OpenNetns does.
func (n *Node) Identify(ref ns.Ref) (ns.Ref, error) {
	at, err := n.OpenNetns(ref)
	if err != nil {
		return ns.Ref{}, err
	}
	return at.Ref(), at.Close()
}

// Close closes the node.
func (n *Node) Close() error {
	n.Tracked.Close()
	return n.Shut()
}

// Taken reports whether the node has links with an instance's marks.
func (n *Node) Taken(instance string) (bool, error) {
	links, err := n.Conn.Veths(ofInstance(instance))
	return len(links) > 0, err
}

// ofInstance returns a filter that keeps the links with an instance's stamp, whatever their
// names are now.
func ofInstance(instance string) func(rtnl.Link) (bool, error) {
	groups, err := stamp.GroupsOf(instance)
	return func(l rtnl.Link) (bool, error) {
		_, ours := link.NameOf(instance, groups, l)
		return ours, err
	}
}

// LinksOf lists the links with an instance's stamp, whatever their names are now.
func (n *Node) LinksOf(instance string) ([]rtnl.Link, error) {
	return rtnl.Steady(func() ([]rtnl.Link, error) { return n.Conn.Veths(ofInstance(instance)) })
}

// OwnLinks lists the links with this instance's stamp, under the names that ADD gave them.
// If two links claim the same name, the link that has that name now counts.
func (n *Node) OwnLinks() ([]rtnl.Link, error) {
	all, err := n.LinksOf(n.Instance)
	if err != nil {
		return nil, fmt.Errorf("looking for the links of this agent's pods: %w", err)
	}
	var links []rtnl.Link
	called := map[string]bool{}
	for _, l := range all {
		called[l.Name] = true
	}
	for _, l := range all {
		name, _ := link.NameOf(n.Instance, n.Groups, l)
		if name != l.Name && called[name] {
			continue
		}
		called[name] = true
		l.Name = name
		if _, ok := stamp.LinkID(name); ok {
			links = append(links, l)
		}
	}
	return links, nil
}

// WholeOwner returns the owner of a link that is whole (link.IsWhole) and this instance's, as the
// link's marks tell. Others may have taken some of the marks away. whole is false for any other link.
func (n *Node) WholeOwner(l rtnl.Link) (id hold.ID, whole bool) {
	if s, stamped := stamp.Parse(l.Alias); stamped && s.Instance != n.Instance {
		return "", false
	}
	name, _ := link.NameOf(n.Instance, n.Groups, l)
	id, ours := stamp.LinkID(name)
	return id, ours && link.IsWhole(n.Groups, l)
}

// OwnMacvlans goes through the pods, and returns whose this instance's macvlans are that are whole: no link of the node leads to a macvlan. A pod that
// may change its interfaces can hide its macvlan, or feign one.
func (n *Node) OwnMacvlans() (whose []string) {
	if n.Macvlans == nil {
		return nil
	}
	for _, s := range n.Macvlans.Survey(link.EachNetns) {
		if !s.Going {
			whose = append(whose, s.Whose)
		}
	}
	return whose
}

// Package node is the door to the node that an agent works on: all that the agent asks of
// the kernel and changes there. Open opens the real kernel; nodetest has a node in memory.
package node

import (
	"fmt"

	"github.com/berth-net/berth/internal/daemon"
	"github.com/berth-net/berth/internal/deletions"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/kinds"
	"github.com/berth-net/berth/internal/kinds/link"
	"github.com/berth-net/berth/internal/stamp"
)

// Node is a node as its agent has it. Its fields do not change once the agent is open.
type Node struct {
	daemon.Place
	kinds.Marks

	Here *ns.Netns // the network namespace, open; nil if the node is in memory

	Conn    Conn
	Tracked kinds.Tracked
	// Equip makes the doors of the kinds, once the node has its marks.
	Equip func(*Node, Hooks) error
	kinds.Doors

	// Noticed calls back whenever something new is in the queue.
	Noticed func(*deletions.Queue, func()) error
	// Identify says what is at a namespace's path, as ns.Ref.Open does.
	Identify func(ns.Ref) (ns.Ref, error)
	// Occupied reports whether an interface of a name is in a namespace.
	Occupied func(ns.Ref, string) (bool, error)
	// Ends looks for the other ends of links of the node, as link.FindEnds does.
	Ends func(self ns.Ref, wanted []link.WantedEnd) map[string]link.PodEnd
	// SetSysctl sets a sysctl of the node's network namespace.
	SetSysctl func(name, value string) error
	// Shut closes what Open opened.
	Shut func() error
}

// Hooks are told of what the doors of the kinds see.
type Hooks = kinds.Hooks

// Monitor tells of changes that others may have made.
type Monitor = kinds.Monitor

// Conn is rtnetlink, for what is no kind's.
type Conn interface {
	Veths(keep func(rtnl.Link) (bool, error)) ([]rtnl.Link, error)
	Link(name string) (rtnl.Link, error)
	Routes(rtnl.RouteFilter) ([]rtnl.Route, error)
	Neighbours() ([]rtnl.Neighbour, error)
	UplinkMTU() (int, error)
	Close() error
}

// Mark gives the node an instance's marks, and makes its doors.
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
	return n.Equip(n, h)
}

// Kinds lists what an agent of this node can hold (kinds.Doors).
func (n *Node) Kinds() hold.Kinds { return n.Doors.List(n.Tracked) }

// Close closes the node.
func (n *Node) Close() error {
	n.Tracked.Close()
	return n.Shut()
}

// Taken reports whether links with an instance's marks are on the node.
func (n *Node) Taken(instance string) (bool, error) {
	links, err := n.Conn.Veths(ofInstance(instance))
	return len(links) > 0, err
}

// ofInstance keeps the links with an instance's stamp, whatever they are called.
func ofInstance(instance string) func(rtnl.Link) (bool, error) {
	groups, err := stamp.GroupsOf(instance)
	return func(l rtnl.Link) (bool, error) {
		_, ours := link.NameOf(instance, groups, l)
		return ours, err
	}
}

// LinksOf lists the links with an instance's stamp, whatever they are called.
func (n *Node) LinksOf(instance string) ([]rtnl.Link, error) {
	return rtnl.Steady(func() ([]rtnl.Link, error) { return n.Conn.Veths(ofInstance(instance)) })
}

// OwnLinks lists the links with this instance's stamp, under the names that ADD
// gave them. Of two that claim to be the same the one that is called so is.
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

// WholeOwner returns whose a whole link of this instance is, as far as others have left
// the link so. whole is false for other links.
func (n *Node) WholeOwner(l rtnl.Link) (id hold.ID, whole bool) {
	if s, stamped := stamp.Parse(l.Alias); stamped && s.Instance != n.Instance {
		return "", false
	}
	name, _ := link.NameOf(n.Instance, n.Groups, l)
	id, ours := stamp.LinkID(name)
	return id, ours && link.IsWhole(n.Groups, l)
}

package nodetest

import (
	"cmp"
	"sync/atomic"

	"github.com/berth-net/berth/internal/daemon"
	"github.com/berth-net/berth/internal/fault"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel/nft"
	"github.com/berth-net/berth/internal/node"
	"github.com/berth-net/berth/internal/node/nodetest/ways"
	"github.com/berth-net/berth/internal/stamp"
)

// doors is one agent's way to a Node, from the agent's start to its end. Each change that
// the agent makes goes through the plan: it may fail, or be the agent's last one.
type doors struct {
	*Node
	plan     *fault.Plan
	instance string
	groups   stamp.Groups
	ruleset  nft.Ruleset
	held     hold.ID                                    // the owner of the table; "": nobody has it
	missed   bool                                       // Map has put the table back before Run heard that others had deleted it
	kept     func(hold.ID, []nft.Mapping) []nft.Mapping // returns the host ports of a former agent that this agent keeps; nil: it keeps all
	going    func(hold.ID) (bool, error)                // reports whether an owner's deletion waits; nil: no deletion does
	mapped   map[hold.ID][]nft.Mapping                  // host ports that the agent has mapped or found; nil: it has not looked
	claims   *claims
	batches  *atomic.Uint32
	watched  func(op string, h hold.Hold)
}

// Open returns a function that does what node.Open does, for an agent on a node in memory.
// watched is called before each operation on an owner's link ("acquire", "cut", "sever",
// "release"), and before the host's end of the link is set up ("furnish"); it may be nil.
func (w *Node) Open(p *fault.Plan, watched func(op string, h hold.Hold)) func() (*node.Node, error) {
	return func() (*node.Node, error) {
		k := &doors{Node: w, plan: p, claims: &claims{}, batches: &atomic.Uint32{}, watched: watched}
		if watched == nil {
			k.watched = func(string, hold.Hold) {}
		}
		w.mu.Lock()
		self := w.self
		w.mu.Unlock()
		return &node.Node{
			Place: daemon.Place{Netns: self, Boot: w.Boot(), Wall: w.Wall, Boottime: w.Boottime},
			Conn:  conn{k}, Tracked: tracked{k},
			Equip: func(n *node.Node, h node.Hooks) error {
				k.kept, k.going = h.Kept, h.Going
				k.instance, k.groups, k.ruleset = n.Instance, n.Groups, nft.Ruleset{Instance: n.Instance}
				n.Table, n.Routes, n.NodeRoutes, n.Tunnel, n.Links = tables{k}, routes{k, n.Metric}, ways.Routes{Ways: w.nodes, Door: k, Metric: n.Metric}, ways.Tunnel{Ways: w.nodes, Door: k, Instance: k.instance}, links{k}
				n.Ports = n.PortsIn(tables{k}, h)
				n.Shaping = limits{k}
				n.OpenOthers(h)
				n.Monitor = k.listen
				return nil
			},
			OpenNetns: w.open, Noticed: w.onNotice,
			Sysctl: func(name string) (string, error) {
				w.mu.Lock()
				defer w.mu.Unlock()
				return cmp.Or(w.sysctl[name], "0"), nil
			},
			SetSysctl: func(name, value string) error {
				return k.step("sysctl", name, func() error { w.sysctl[name] = value; return nil })
			},
			Ends: w.ends,
			Shut: func() error { return nil },
		}, nil
	}
}

// Lock and Unlock are the node's.
func (k *doors) Lock()   { k.mu.Lock() }
func (k *doors) Unlock() { k.mu.Unlock() }

// Step is step, for ways.
func (k *doors) Step(sort, what string, f func() error) error { return k.step(sort, what, f) }

// step makes one change of the node, as a system call does.
func (k *doors) step(sort, what string, f func() error) error {
	return k.plan.Around(sort, sort+" "+what, func() error {
		k.mu.Lock()
		defer k.mu.Unlock()
		return f()
	})
}

// intact reports whether the table drops what enters or leaves by dying links. The caller
// holds k.mu.
func (k *doors) intact() bool { return k.table != nil && k.table.Instance == k.instance }

// between lets others change the node between two system calls.
func (k *doors) between() {
	if k.Pause != nil {
		k.Pause()
	}
}

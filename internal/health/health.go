// Package health says whether the nodes of a cluster reach each other. Each node has a responder: a server in a network
// namespace of its own, which is attached as a pod is. From there the agent probes, over and over, the responders of the other
// nodes (HTTP, on the way from pod to pod) and these nodes themselves (ICMP). What it finds is kept in memory alone.
//
// Two owners in the ledger stand for the responder. One has the responder's addresses, and lives as long as the node has
// a responder (address.go). The other one has the link, needs the first, and may come and go as often as it likes (launch.go):
// so its release keeps the addresses, which rest only when the node gives its responder up. The network namespace has no path.
// It ends with the agent, and takes the link with it; the next agent finds the second owner in the ledger, releases it and takes
// a new one. So nothing is left of a responder whose agent was killed.
package health

import (
	"context"
	"net/netip"
	"sync"
	"time"

	"github.com/berth-net/berth/internal/config"
	"github.com/berth-net/berth/internal/daemon"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/ipam"
	"github.com/berth-net/berth/internal/mode"
	"github.com/berth-net/berth/internal/peers"
)

// Options are what Health needs.
type Options struct {
	config.Health        // without Enabled the node has no responder, and probes nobody
	Node          string // the name of this node
	// Mode returns the mode of an attachment that has addresses which another owner holds.
	Mode func(ipam.Claim) mode.Mode
	// Pool returns the name of the default pool, and CIDRs from where that gives addresses.
	Pool  func() (string, error)
	CIDRs func(pool string) []netip.Prefix
	// Equipped refuses a pool if the node lacks something that its pods need.
	Equipped func(ctx context.Context, pool string) error
	// Claim takes addresses of a pool: the wanted ones, if there are any. Unclaim gives them back.
	Claim   func(ctx context.Context, pool string, wanted []netip.Addr) (ipam.Claim, error)
	Unclaim func(ipam.Claim)
	// Needs returns the owners of the pools' CIDRs that addresses are of (ground.Needs).
	Needs func([]hold.Name) []hold.ID
	// Adopt claims those among addresses that nobody has and that do not rest, also while the pools give out none because
	// the ledger was lost.
	Adopt func([]netip.Addr) []netip.Addr
	// Annotate tells the cluster the addresses of this node's responder, nil where it has none.
	Annotate func(ctx context.Context, v4, v6 *netip.Addr) error
}

// Health keeps a node's responder, and probes the other nodes.
type Health struct {
	*daemon.Core
	Options

	mu      sync.Mutex
	self    peers.Node // this node, as the cluster has it
	told    bool       // somebody has told of it
	others  map[string]peers.Node
	results map[way]*result
	place   *place        // where the responder is; nil: there is none now
	trouble error         // why there is none, or why it does not answer
	every   time.Duration // how often each way is probed now
	wake    chan struct{} // has a token if the responder may have to be looked at
	differs chan struct{} // has a token if the cluster may have to be told other addresses
}

// New returns a Health that knows of no node, and has no responder yet.
func New(d *daemon.Core, o Options) *Health {
	return &Health{
		Core: d, Options: o, every: o.Interval,
		others: map[string]peers.Node{}, results: map[way]*result{}, wake: make(chan struct{}, 1), differs: make(chan struct{}, 1),
	}
}

// Keep keeps the responder and probes the other nodes until ctx ends. A node that has no responder any more gives back
// what it had of it.
func (h *Health) Keep(ctx context.Context) {
	var all sync.WaitGroup
	defer all.Wait()
	if h.Annotate != nil {
		all.Go(func() { h.keepTold(ctx) })
	}
	if !h.Enabled {
		h.keepAway(ctx)
		return
	}
	all.Go(func() { h.keepResponder(ctx) })
	h.keepProbing(ctx)
}

// Self tells of this node.
func (h *Health) Self(n peers.Node) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.self, h.told = n, true
	stir(h.wake)
	stir(h.differs)
}

// All tells of all other nodes.
func (h *Health) All(nodes []peers.Node) {
	h.mu.Lock()
	defer h.mu.Unlock()
	known := h.results
	h.others, h.results = make(map[string]peers.Node, len(nodes)), map[way]*result{}
	for _, n := range nodes {
		h.others[n.Name] = n
		for _, w := range waysTo(n) {
			if r := known[w]; r != nil {
				h.results[w] = r
			}
		}
	}
}

// Put tells of another node, which is new or may have changed.
func (h *Health) Put(n peers.Node) {
	h.mu.Lock()
	defer h.mu.Unlock()
	was := h.others[n.Name]
	h.others[n.Name] = n
	h.forget(was, n)
}

// Drop tells that another node is gone.
func (h *Health) Drop(name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	was := h.others[name]
	delete(h.others, name)
	h.forget(was, peers.Node{})
}

func stir(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// stand notes where the responder is, and why it is not or does not answer.
func (h *Health) stand(p *place, trouble error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	was := h.trouble
	h.place, h.trouble = p, trouble
	if trouble != nil && (was == nil || was.Error() != trouble.Error()) {
		h.Log.Warn("this node's responder does not answer: the agent tries again", "err", trouble)
	}
	stir(h.differs)
}

// standing returns where the responder is, nil: nowhere.
func (h *Health) standing() *place {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.place
}

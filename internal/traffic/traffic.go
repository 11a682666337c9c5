// Package traffic sees to the entries that pods' traffic leaves in the kernel's connection
// tracking. It deletes the entries of an address before the address is given anew (rinse.go,
// claim.go), entries that a pod has too many of (trim.go), and entries of connections that began
// while the rules did not hold, or that have a host port from before it was mapped (exposed.go). That
// the rules did not hold outlives the agent (missed.go).
package traffic

import (
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/berth-net/berth/internal/attachment"
	"github.com/berth-net/berth/internal/daemon"
	"github.com/berth-net/berth/internal/ground"
	"github.com/berth-net/berth/internal/kernel/nft"
	"github.com/berth-net/berth/internal/node"
	"github.com/berth-net/berth/internal/patience"
	"github.com/berth-net/berth/internal/ports"
	"github.com/berth-net/berth/internal/turn"
)

// Traffic keeps connection tracking clean.
type Traffic struct {
	*daemon.Core
	ground *ground.Ground
	node   *node.Node
	index  *attachment.Index
	Ports  *ports.Ports // the host ports of pods

	turn      turn.One                 // a rinsing pass that is under way has it
	wake      chan struct{}            // has a token once an address has begun to rest
	failed    atomic.Pointer[rinseErr] // the error of the last rinsing pass; nil: the pass succeeded
	uncovered chan struct{}            // has a token when connections may have begun without the table
	claiming  patience.Calls           // the calls that a claim waits for: nftables and connection tracking may hang
	astray    struct {                 // strays that the table notes no more, and whose connections the kernel may still know
		sync.Mutex
		noted map[netip.Addr]bool
	}
	forgettings forgettings   // the passes for claimed addresses
	marks       sync.Mutex    // whoever sets the mark of the table's strays has it
	marking     atomic.Int64  // odd while somebody sets the mark, and has not tainted all addresses yet
	unbarred    chan struct{} // has a token when remade has addresses
	remade      struct {
		sync.Mutex
		addrs []netip.Addr
	}
	missed   missed        // whether the table was missing then, or others have touched it
	mapped   chan struct{} // has a token when mappings has host ports
	mappings struct {      // host ports that were mapped since the last pass for these
		sync.Mutex
		new    []nft.Mapping
		astray []nft.Mapping // that have led to addresses by mistake
		anew   bool          // the next pass is for all host ports
	}
}

// rinseErr is a pass that failed.
type rinseErr struct {
	addrs int
	err   error
}

// New returns the traffic of a node's attachments, with their host ports.
func New(d *daemon.Core, n *node.Node, g *ground.Ground, x *attachment.Index) *Traffic {
	one := func() chan struct{} { return make(chan struct{}, 1) }
	t := &Traffic{Core: d, ground: g, node: n, index: x, Ports: ports.New(d, x, g, n), wake: one(), uncovered: one(), mapped: one(), unbarred: one()}
	t.missed.now = t.leftMark()
	t.astray.noted = map[netip.Addr]bool{}
	t.Ports.Astray = t.Astray
	return t
}

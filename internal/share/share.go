// Package share shares pools of addresses out to a cluster's nodes, by the protocol of api/v1alpha1. It never gives one block
// to two nodes, whatever it is killed between, however old what it has read is, and however many of it run at once:
//
//   - IPPool.status is the only record of who may have a block, and is written only by the resourceVersion of a live read.
//   - A note in Pending is completed by a NodeNetwork that was read before the pool was; so whoever has completed the note
//     already, and dropped it, has changed that NodeNetwork, and the API server refuses the write.
//   - A note is dropped only after a live read that came after the pool's, and that shows the block in the NodeNetwork, or that
//     the NodeNetwork is gone.
//   - A block is freed only after a live list that came after the pool's read, and in which no NodeNetwork has it.
//
// TestModel plays a cluster at random, and TestOrder the orders of things that are too rare for that.
//
// Why the agent's word is enough for the rest: it holds nothing that its NodeNetwork's spec does not have.
package share

import (
	"context"
	"log/slog"
	"net/netip"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-net/berth/api/v1alpha1"
)

// API is the API server. Nobody changes what a method returns; what is written is a copy, which then has the answer's
// resourceVersion. An error may hide that a write was done.
type API interface {
	// Cached reads may be old. Their objects may lack what nobody here asks for.
	CachedNodes(context.Context) ([]*corev1.Node, error)
	CachedNetworks(context.Context) ([]*v1alpha1.NodeNetwork, error)

	// Live reads show all that was written before they began. What is not there is nil.
	Node(ctx context.Context, name string) (*corev1.Node, error)
	Nodes(context.Context) ([]*corev1.Node, error)
	Network(ctx context.Context, name string) (*v1alpha1.NodeNetwork, error)
	Networks(context.Context) ([]*v1alpha1.NodeNetwork, error)
	Pools(context.Context) ([]*v1alpha1.IPPool, error)

	// Services returns the CIDRs of the cluster's services, as far as the API server says. It may be old.
	Services(context.Context) ([]netip.Prefix, error)

	// Writes are refused (conflict) unless the object still has the resourceVersion.
	CreateNetwork(context.Context, *v1alpha1.NodeNetwork) error
	UpdateNetwork(context.Context, *v1alpha1.NodeNetwork) error // metadata and spec
	UpdatePool(context.Context, *v1alpha1.IPPool) error         // metadata
	UpdatePoolStatus(context.Context, *v1alpha1.IPPool) error
	DeleteNetwork(ctx context.Context, name string, uid types.UID) error

	// Event tells people of a pool (*IPPool) or a node's network (*NodeNetwork).
	Event(about any, reason, message string)
}

// Sharer shares pools out. Its methods may be called by several goroutines.
type Sharer struct {
	API
	Log *slog.Logger
	// Select selects the nodes that get a NodeNetwork: those that have an agent.
	Select labels.Selector
	// Writers is how many NodeNetworks are written at the same time.
	Writers int

	pass sync.Mutex // one pass over a pool at a time

	mu       sync.Mutex
	written  map[types.UID]*v1alpha1.NodeNetwork // what the cache may not show yet
	returned map[string]*returned                // by pool
	departed map[types.UID]bool                  // NodeNetworks that went because their Nodes had gone
}

// New returns a Sharer.
func New(api API, log *slog.Logger) *Sharer {
	return &Sharer{
		API: api, Log: log, Select: labels.Everything(), Writers: 16,
		written: map[types.UID]*v1alpha1.NodeNetwork{}, returned: map[string]*returned{}, departed: map[types.UID]bool{},
	}
}

// returned are blocks of a pool that this Sharer itself has taken from a node, so that they can be freed although some node's
// agent has not written a status yet. It knows so only as long as nobody else changes the pool.
type returned struct {
	version string // the pool's resourceVersion
	blocks  map[netip.Prefix]bool
}

// returnedAt returns what has come back to the pool, which was just read.
func (s *Sharer) returnedAt(pool *v1alpha1.IPPool) *returned {
	r := s.returned[pool.Name]
	if r == nil || r.version != pool.ResourceVersion {
		r = &returned{version: pool.ResourceVersion, blocks: map[netip.Prefix]bool{}}
		s.returned[pool.Name] = r
	}
	return r
}

// maxDeparted bounds what is remembered of NodeNetworks that are gone.
const maxDeparted = 1 << 14

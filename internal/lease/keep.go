package lease

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/berth-net/berth/api/v1alpha1"
	"github.com/berth-net/berth/internal/config"
	"github.com/berth-net/berth/internal/daemon"
	"github.com/berth-net/berth/internal/ground"
	"github.com/berth-net/berth/internal/ipam"
)

// Node has the node's ledger and pools (ground.Ground).
type Node interface {
	Given() config.Given
	Blocks() []ground.Block
	Unfit([]config.Lease) map[netip.Prefix]error
	Give(context.Context, config.Given) error
	Figures() []ipam.Figures
	Lacking(pool string) error
	// OwnPool reports whether a pool is the node's own, of its configuration, and OwnDefault returns the first of these.
	OwnPool(name string) bool
	OwnDefault() (string, error)
}

// API is the cluster's API server.
type API interface {
	// Network returns this node's NodeNetwork as it is now, and not as it once was; nil: there is none.
	Network(context.Context) (*v1alpha1.NodeNetwork, error)
	// Write writes the fields of s that the agent writes. The error is ErrStale, and nothing is written, unless the
	// NodeNetwork is of that version. It returns the NodeNetwork as it is then.
	Write(ctx context.Context, version string, s v1alpha1.NodeNetworkStatus) (*v1alpha1.NodeNetwork, error)
	// Pod and Namespace ask for a pod and a namespace.
	Pod(ctx context.Context, namespace, name string) (Meta, error)
	Namespace(ctx context.Context, name string) (Meta, error)
}

// ErrStale says that a NodeNetwork is of another version.
var ErrStale = errors.New("somebody else has changed the NodeNetwork")

// Options are what a Keeper needs.
type Options struct {
	Node Node
	API  API
	Log  *slog.Logger
	// Self is told of the blocks from which the node's own addresses are to be taken, the first one of each family, and of the
	// node's addresses.
	Self func([]netip.Prefix, []netip.Addr)
	// Ready is told whether the node has blocks, and all that pods with addresses of these need.
	Ready func(bool)
	// Others returns how many other nodes there are.
	Others func() int
	Now    func() time.Time
}

// Keeper keeps the node's leases.
type Keeper struct {
	Options
	view *View
	wake chan struct{} // has a token if there may be something to do

	mu      sync.Mutex
	told    bool                            // somebody has told whether there is a NodeNetwork
	network *v1alpha1.NodeNetwork           // the newest that the API server has shown; nil: there is none
	older   bool                            // the API server has shown an older one since: ask for it
	waiting map[string]map[string]time.Time // until when an ADD counts as waiting, by pool and who waits

	wrote  time.Time // when the status was written last
	failed string    // what has failed last
}

// New returns a keeper that knows nothing of the cluster.
func New(o Options) *Keeper {
	k := &Keeper{Options: o, wake: make(chan struct{}, 1), waiting: map[string]map[string]time.Time{}}
	k.view = newView(k.Stir)
	return k
}

// View is what has to be told what the API server says of pools, pods and namespaces.
func (k *Keeper) View() *View { return k.view }

// Stir says that something may have changed, such as how many addresses are used. It costs nothing.
func (k *Keeper) Stir() {
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// Network tells of this node's NodeNetwork as a list or a watch of the API server has shown it; nil: there is none.
func (k *Keeper) Network(n *v1alpha1.NodeNetwork) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.told = true
	if n != nil && k.network != nil && n.UID == k.network.UID && before(n.ResourceVersion, k.network.ResourceVersion) {
		k.older = true // the server's cache lags behind, or the cluster's store is an older one, restored
	} else {
		k.network = n
	}
	k.Stir()
}

// before reports whether a resource version is older than another. Versions that are no numbers are not comparable.
func before(a, b string) bool {
	x, err1 := strconv.ParseUint(a, 10, 64)
	y, err2 := strconv.ParseUint(b, 10, 64)
	return err1 == nil && err2 == nil && x < y
}

const (
	// pause is how long the keeper waits at least between two looks: what happens meanwhile is one change.
	pause = 100 * time.Millisecond
	// review is how often the keeper looks at least.
	review = 15 * time.Second
	// figuresEvery is how often figures are written at most in a cluster of fewNodes nodes or less. In a larger one it is the
	// longer the more nodes there are, and at most figuresMost: what one node writes, the API server tells all others.
	figuresEvery, figuresMost, fewNodes = 30 * time.Second, 10 * time.Minute, 100
	// againFirst and againMost are the first and the longest wait after a failure.
	againFirst, againMost = time.Second, 10 * time.Second
	// lasting is how long an ADD that has found no address counts as waiting.
	lasting = time.Minute
	// patience is how long one look may take, for the API server and the kernel.
	patience = 15 * time.Second
)

// Keep keeps the node's leases as the API server says, until ctx ends.
func (k *Keeper) Keep(ctx context.Context) {
	again := againFirst
	for ctx.Err() == nil {
		look, cancel := context.WithTimeout(ctx, patience)
		err := k.look(look)
		cancel()
		k.note(ctx, err)
		if err != nil && !errors.Is(err, ErrStale) {
			daemon.Sleep(ctx, again, nil)
			again = min(2*again, againMost)
			continue
		}
		again = againFirst
		daemon.Sleep(ctx, pause, nil)
		if err != nil {
			continue
		}
		select {
		case <-ctx.Done():
		case <-k.wake:
		case <-time.After(review):
		}
	}
}

// note logs what has failed, once.
func (k *Keeper) note(ctx context.Context, err error) {
	text := ""
	if err != nil && !errors.Is(err, ErrStale) && ctx.Err() == nil {
		text = err.Error()
	}
	if text != "" && text != k.failed {
		k.Log.Warn("the agent could not keep its leases of the cluster's blocks as the cluster wants; it tries again", "err", err)
	}
	k.failed = text
}

// look makes the ledger and the NodeNetwork agree, once.
func (k *Keeper) look(ctx context.Context) error {
	n, err := k.newest(ctx)
	if err != nil || !k.knows() {
		return err
	}
	p := k.plan(n)
	failed := k.give(ctx, p.kept)
	if n == nil {
		return failed // the operator has not made it yet
	}
	s := k.status(n, p)
	if len(p.fresh) > 0 || k.due(n, s, p) {
		now, err := k.API.Write(ctx, n.ResourceVersion, s)
		if err != nil {
			k.mu.Lock()
			k.older = k.older || errors.Is(err, ErrStale)
			k.mu.Unlock()
			return errors.Join(failed, err)
		}
		k.wrote = k.Now()
		k.mu.Lock()
		if k.network == n { // else a watch has shown a newer one meanwhile
			k.network = now
		}
		k.mu.Unlock()
	}
	if len(p.fresh) == 0 {
		return failed
	}
	return k.give(ctx, slices.Concat(p.kept, p.fresh))
}

func (k *Keeper) knows() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.told
}

// newest returns the NodeNetwork. If the API server has shown an older one, newest asks for it.
func (k *Keeper) newest(ctx context.Context) (*v1alpha1.NodeNetwork, error) {
	k.mu.Lock()
	n, older := k.network, k.older
	k.older = false
	k.mu.Unlock()
	if !older {
		return n, nil
	}
	n, err := k.API.Network(ctx)
	if err != nil {
		k.mu.Lock()
		k.older = true
		k.mu.Unlock()
		return nil, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.network = n // even if it is an older one than before: the cluster's store may have been restored
	return n, nil
}

// plan is what a NodeNetwork asks of the node.
type plan struct {
	kept    []config.Lease         // blocks that the ledger has, and that the node may go on using
	fresh   []config.Lease         // blocks to take
	blocks  []ground.Block         // what the ledger has
	figures map[string]figure      // by pool
	waits   map[string]int         // how many ADDs wait, by pool
	refused map[netip.Prefix]error // blocks that the node cannot take
	wrong   []string               // blocks that are none
}

// plan compares a NodeNetwork with the ledger. Without a NodeNetwork, as if somebody has deleted it, all blocks drain.
func (k *Keeper) plan(n *v1alpha1.NodeNetwork) (p plan) {
	p.blocks, p.waits = k.Node.Blocks(), k.waits()
	p.figures = k.figures(p.blocks)
	if n == nil {
		return p
	}
	for _, b := range n.Spec.Blocks {
		c, err := netip.ParsePrefix(b.CIDR)
		if err != nil {
			p.wrong = append(p.wrong, err.Error())
			continue
		}
		l := config.Lease{Pool: b.Pool, CIDR: c}
		i := slices.IndexFunc(p.blocks, func(h ground.Block) bool { return h.Lease == l })
		switch {
		case b.Withdrawn:
		case i >= 0 && !p.blocks[i].Lost:
			p.kept = append(p.kept, l)
		default:
			p.fresh = append(p.fresh, l)
		}
	}
	if len(p.fresh) > 0 {
		p.refused = k.Node.Unfit(p.fresh)
		p.fresh = slices.DeleteFunc(p.fresh, func(l config.Lease) bool { return p.refused[l.CIDR] != nil })
	}
	return p
}

// give puts leases into force; others drain.
func (k *Keeper) give(ctx context.Context, leases []config.Lease) error {
	given := config.Given{Leases: slices.Clone(leases), Default: k.Node.Given().Default}
	if k.view.knowsPools() {
		given.Default = k.view.standard(nil)
	}
	given.Sort()
	err := k.Node.Give(ctx, given)
	in := k.Node.Given().Leases
	var first []netip.Prefix // in the operator's order, so that the node's own addresses stay the same as long as can be
	for _, l := range leases {
		family := func(p netip.Prefix) bool { return p.Addr().Is4() == l.CIDR.Addr().Is4() }
		if slices.Contains(in, l) && !slices.ContainsFunc(first, family) {
			first = append(first, l.CIDR)
		}
	}
	slices.SortFunc(first, func(a, b netip.Prefix) int {
		return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
	})
	k.Self(first, k.view.where())
	return err
}

// Package kube follows a Kubernetes cluster's API server, as far as a node needs to know: which addresses the cluster
// has given to the node's pods, and where the pods of other nodes are. It tells the cluster that the node has a network
// (condition.go), and where the node's responder is (annotate.go). Nothing of the agent waits for it: pods are attached and detached by what the ledger says, whether or not
// the API server answers. If the cluster has pools of its own (config.AddressesPools), the package also follows these, the
// node's pods and the namespaces, and writes what the node has of the pools.
//
// Reflectors list and watch, and hand on what they read: no object stays in memory.
package kube

import (
	"context"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-net/berth/internal/config"
	"github.com/berth-net/berth/internal/daemon"
	"github.com/berth-net/berth/internal/lease"
	"github.com/berth-net/berth/internal/peers"
)

// Options are what a Watcher needs.
type Options struct {
	config.Kubernetes
	Agent string // what the API server is told of the client, such as "berthd/v0.1.0"
	Log   *slog.Logger
	// Given is told of the CIDRs that the cluster has given to this node's pods. An error is logged, and Given is told again.
	Given func(context.Context, []netip.Prefix) error
	// Others is told of the other nodes.
	Others Others
	// Leases is told of what counts for the node's blocks of the cluster's pools; nil: the node has none.
	Leases *lease.Keeper
}

// Others is told of the cluster's other nodes, and of this node's own addresses (peers.Peers).
type Others interface {
	Self(peers.Node)
	All([]peers.Node)
	Put(peers.Node)
	Drop(name string)
}

// Watcher follows the API server.
type Watcher struct {
	Options
	*Client
	condition condition
	soonAgain time.Duration // shorter in tests

	mu    sync.Mutex
	given []netip.Prefix  // what Given has to be told
	mine  []netip.Addr    // of this node's responder, as its annotations say
	key   peers.WireGuard // of this node's WireGuard device, as they say
	wake  chan struct{}   // has a token if given has changed
	lacks error           // why the node has not the addresses that the cluster means it to have; nil: it has
	ways  ways
	fails failures
}

// Lacks returns why the node has not the addresses that the cluster means it to have (Node.spec.podCIDRs); nil: it has them, or
// nobody knows.
func (w *Watcher) Lacks() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.lacks
}

func (w *Watcher) setLacks(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lacks = err
}

// New returns a Watcher, and asks nobody anything yet.
func New(c *Client, o Options) *Watcher {
	return &Watcher{
		Options: o, Client: c, wake: make(chan struct{}, 1), ways: newWays(o.Others),
		condition: condition{wake: make(chan struct{}, 1)}, soonAgain: soonAgain,
	}
}

// Keep follows the API server until ctx ends.
func (w *Watcher) Keep(ctx context.Context) {
	var all sync.WaitGroup
	defer all.Wait()
	follow := func(what string, from cache.ListerWatcher, o any, to cache.ReflectorStore) {
		all.Go(func() { w.follow(ctx, what, from, o, to) })
	}
	all.Go(func() { w.keepCondition(ctx) })
	follow("nodes", cache.NewListWatchFromClient(w.core, "nodes", metav1.NamespaceAll, fields.Everything()), &corev1.Node{}, &nodeStore{w, guard{log: w.Log, what: "nodes"}})
	if w.Leases == nil {
		w.keepGiven(ctx)
		return
	}
	mine := fields.OneTermEqualSelector("metadata.name", w.Node)
	follow("this node's NodeNetwork", cache.NewListWatchFromClient(w.berth, "nodenetworks", metav1.NamespaceAll, mine), &network{}, ownStore{w})
	follow("NodeNetworks", cache.NewListWatchFromClient(w.berth, "nodenetworks", metav1.NamespaceAll, fields.Everything()), &network{}, &networkStore{w, guard{log: w.Log, what: "NodeNetworks"}})
	follow("IPPools", cache.NewListWatchFromClient(w.berth, "ippools", metav1.NamespaceAll, fields.Everything()), &ippool{}, poolStore{w})
	follow("pods", w.metadata("pods", fields.OneTermEqualSelector("spec.nodeName", w.Node)), &metav1.PartialObjectMetadata{}, podStore{w})
	w.keepNamespaces(ctx)
}

// follow has a reflector list and watch, and hand on what it reads, until ctx ends.
func (w *Watcher) follow(ctx context.Context, what string, from cache.ListerWatcher, o any, to cache.ReflectorStore) {
	from = w.fails.watch(what, from)
	logger := logr.FromSlogHandler(w.Log.Handler()).V(0)
	cache.NewReflectorWithOptions(from, o, to, cache.ReflectorOptions{Logger: &logger, Name: what}).RunWithContext(ctx)
}

// again is how long keepGiven waits until it tells Given again.
const again = 10 * time.Second

// keepGiven tells Given what the cluster has given to the node.
func (w *Watcher) keepGiven(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.wake:
		}
		w.mu.Lock()
		given := w.given
		w.mu.Unlock()
		err := w.Given(ctx, given)
		if ctx.Err() != nil {
			return
		}
		w.setLacks(err)
		if err != nil {
			w.Log.Error("could not take the addresses that the cluster has given to this node; the agent tries again", "podCIDRs", given, "err", err)
			daemon.Sleep(ctx, again, w.wake)
			stir(w.wake)
		} else {
			w.condition.took(given)
		}
	}
}

// stir wakes who waits for wake.
func stir(wake chan struct{}) {
	select {
	case wake <- struct{}{}:
	default:
	}
}

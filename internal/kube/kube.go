// Package kube follows a Kubernetes cluster's API server, as far as a node needs to know: which addresses the cluster
// has given to the node's pods, and where the pods of other nodes are. It tells the cluster that the node has a network
// (condition.go), and where the node's responder is (annotate.go). Nothing of the agent waits for it: pods are attached and detached by what the ledger says, whether or not
// the API server answers. If the cluster has pools of its own (config.AddressesPools), the package also follows these, the
// node's pods and the namespaces, and writes what the node has of the pools.
//
// If pods may ask for several networks (config.Kubernetes.Networks), the package also follows the node's pods and the cluster's network
// attachment definitions, and writes pods' network status (networks.go). An ADD then waits for the API server, for a short time, if
// the agent has not heard of its pod or of one of its networks yet. A DEL never does.
//
// Reflectors list and watch, and hand on what they read. Of objects only what pods' networks need stays in memory.
package kube

import (
	"context"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"github.com/go-logr/logr"
	nadv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/config"
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
	// InForce returns the CIDRs of which this node's pods get addresses: those that Given was told of last, unless it refused them.
	InForce func() []netip.Prefix
	// Others is told of the other nodes.
	Others Others
	// Leases is told of what counts for the node's blocks of the cluster's pools; nil: the node has none.
	Leases *lease.Keeper
	// Asked is told of a pod of this node that asks for other networks than before (nad.KeyNetworks, nad.KeyDefault), unless it is the
	// first that the agent hears of the pod. It holds up the reflector of pods, so it has to be quick. nil: nobody wants to know.
	Asked func(api.Pod)
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
	asking    time.Duration // shorter in tests

	cidrs cidrs

	wishes      wishes
	definitions definitions

	mu    sync.Mutex
	mine  []netip.Addr    // of this node's responder, as its annotations say
	key   peers.WireGuard // of this node's WireGuard device, as they say
	ways  ways
	fails failures
}

// New returns a Watcher, and asks nobody anything yet.
func New(c *Client, o Options) *Watcher {
	return &Watcher{
		Options: o, Client: c, cidrs: cidrs{wake: make(chan struct{}, 1), patience: noneYet}, ways: newWays(o.Others),
		condition: condition{wake: make(chan struct{}, 1)}, soonAgain: soonAgain, asking: asking,
		wishes:      wishes{guard: guard{log: o.Log, what: "pods"}, all: map[string]wish{}},
		definitions: definitions{all: map[string]*nadv1.NetworkAttachmentDefinition{}},
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
	if w.Networks {
		follow("network attachment definitions", cache.NewListWatchFromClient(w.nads, definitionResource, metav1.NamespaceAll, fields.Everything()), &nadv1.NetworkAttachmentDefinition{}, &definitionStore{w, guard{log: w.Log, what: "network attachment definitions"}})
	}
	if w.Networks || w.Leases != nil {
		follow("pods", w.metadata("pods", fields.OneTermEqualSelector("spec.nodeName", w.Node)), &metav1.PartialObjectMetadata{}, podStore{w})
	}
	if w.Leases == nil {
		w.keepGiven(ctx)
		return
	}
	mine := fields.OneTermEqualSelector("metadata.name", w.Node)
	follow("this node's NodeNetwork", cache.NewListWatchFromClient(w.berth, "nodenetworks", metav1.NamespaceAll, mine), &network{}, ownStore{w})
	follow("NodeNetworks", cache.NewListWatchFromClient(w.berth, "nodenetworks", metav1.NamespaceAll, fields.Everything()), &network{}, &networkStore{w, guard{log: w.Log, what: "NodeNetworks"}})
	follow("IPPools", cache.NewListWatchFromClient(w.berth, "ippools", metav1.NamespaceAll, fields.Everything()), &ippool{}, poolStore{w})
	w.keepNamespaces(ctx)
}

// follow has a reflector list and watch, and hand on what it reads, until ctx ends.
func (w *Watcher) follow(ctx context.Context, what string, from cache.ListerWatcher, o any, to cache.ReflectorStore) {
	from = w.fails.watch(what, from)
	logger := logr.FromSlogHandler(w.Log.Handler()).V(0)
	cache.NewReflectorWithOptions(from, o, to, cache.ReflectorOptions{Logger: &logger, Name: what}).RunWithContext(ctx)
}

// stir wakes who waits for wake.
func stir(wake chan struct{}) {
	select {
	case wake <- struct{}{}:
	default:
	}
}

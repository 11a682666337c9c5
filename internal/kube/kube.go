// Package kube follows a Kubernetes cluster's API server, as far as a node needs to know: which CIDRs the cluster
// has given to the node's pods, and where the pods of other nodes are. It only reads. Nothing of the agent waits for
// it: pods are attached and detached by what the ledger says, whether or not the API server answers.
package kube

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/berth-net/berth/internal/config"
	"github.com/berth-net/berth/internal/daemon"
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
	client *rest.RESTClient
	nodes  nodeStore

	mu    sync.Mutex
	given []netip.Prefix // what Given has to be told
	wake  chan struct{}  // has a token if given has changed
}

// New returns a Watcher, and asks nobody anything yet.
func New(o Options) (*Watcher, error) {
	c, err := connect(o.Kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("kubernetes.kubeconfig: %w", err)
	}
	scheme := runtime.NewScheme() // of the few types that are read: client-go's own has all of them, in memory
	scheme.AddKnownTypes(corev1.SchemeGroupVersion, &corev1.Node{}, &corev1.NodeList{})
	metav1.AddToGroupVersion(scheme, corev1.SchemeGroupVersion)
	c.GroupVersion = &corev1.SchemeGroupVersion
	c.APIPath = "/api"
	c.UserAgent = o.Agent
	c.ContentType = runtime.ContentTypeProtobuf
	c.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	c.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	client, err := rest.RESTClientFor(c)
	if err != nil {
		return nil, fmt.Errorf("kubernetes: %w", err)
	}
	w := &Watcher{Options: o, client: client, wake: make(chan struct{}, 1)}
	w.nodes.Watcher = w
	return w, nil
}

// connect returns how the API server is reached.
func connect(kubeconfig string) (*rest.Config, error) {
	if kubeconfig == "" {
		return rest.InClusterConfig()
	}
	return clientcmd.BuildConfigFromFlags("", kubeconfig)
}

// Keep follows the API server until ctx ends.
func (w *Watcher) Keep(ctx context.Context) {
	var all sync.WaitGroup
	defer all.Wait()
	all.Go(func() { w.keepGiven(ctx) })
	logger := logr.FromSlogHandler(w.Log.Handler()).V(0)
	nodes := cache.NewListWatchFromClient(w.client, "nodes", metav1.NamespaceAll, fields.Everything())
	cache.NewReflectorWithOptions(nodes, &corev1.Node{}, &w.nodes, cache.ReflectorOptions{
		Logger: &logger, Name: "nodes",
	}).RunWithContext(ctx)
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
		if err := w.Given(ctx, given); err != nil && ctx.Err() == nil {
			w.Log.Error("could not take the addresses that the cluster has given to this node; the agent tries again", "podCIDRs", given, "err", err)
			daemon.Sleep(ctx, again, w.wake)
			w.stir()
		}
	}
}

func (w *Watcher) stir() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// self notes what the cluster has given to this node.
func (w *Watcher) self(n *corev1.Node) {
	cidrs, err := podCIDRs(n)
	switch {
	case err != nil:
		w.Log.Error("the cluster gives this node CIDRs for its pods that are none", "err", err)
		return
	case len(cidrs) == 0: // not yet, as with each new Node, or the Node was made anew: what the node had stays
		w.Log.Info("the cluster has given this node no CIDRs for its pods yet (Node.spec.podCIDRs); it never will unless its controller manager has --allocate-node-cidrs", "node", n.Name)
		return
	}
	w.Others.Self(peers.Node{Name: n.Name, CIDRs: cidrs, Addresses: addresses(n)})
	w.mu.Lock()
	w.given = cidrs
	w.mu.Unlock()
	w.stir()
}

// other returns another node. ok is false for this node, and for a node that has no pods' CIDRs or no address yet.
func (w *Watcher) other(n *corev1.Node) (node peers.Node, ok bool) {
	if n.Name == w.Node {
		return node, false
	}
	cidrs, err := podCIDRs(n)
	if err != nil {
		w.Log.Warn("the CIDRs of another node's pods are none", "node", n.Name, "err", err)
		return node, false
	}
	node = peers.Node{Name: n.Name, CIDRs: cidrs, Addresses: addresses(n)}
	return node, len(node.CIDRs) > 0 && len(node.Addresses) > 0
}

// podCIDRs returns the CIDRs of a node's pods, in order.
func podCIDRs(n *corev1.Node) (cidrs []netip.Prefix, err error) {
	texts := n.Spec.PodCIDRs
	if len(texts) == 0 && n.Spec.PodCIDR != "" {
		texts = []string{n.Spec.PodCIDR}
	}
	for _, text := range texts {
		c, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, err
		}
		cidrs = append(cidrs, c.Masked())
	}
	slices.SortFunc(cidrs, netip.Prefix.Compare)
	return cidrs, nil
}

// addresses returns a node's own addresses, those of the cluster's network first.
func addresses(n *corev1.Node) (addrs []netip.Addr) {
	for _, sort := range []corev1.NodeAddressType{corev1.NodeInternalIP, corev1.NodeExternalIP} {
		for _, a := range n.Status.Addresses {
			if addr, err := netip.ParseAddr(a.Address); err == nil && a.Type == sort && !has(addrs, addr.Unmap()) {
				addrs = append(addrs, addr.Unmap())
			}
		}
	}
	return addrs
}

// has reports whether there is an address of addr's family already.
func has(addrs []netip.Addr, addr netip.Addr) bool {
	return slices.ContainsFunc(addrs, func(a netip.Addr) bool { return a.Is4() == addr.Is4() })
}

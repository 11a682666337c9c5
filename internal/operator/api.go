package operator

import (
	"context"
	"net/netip"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-net/berth/api/v1alpha1"
	"github.com/berth-net/berth/internal/share"
)

// api is the API server, through controller-runtime's clients.
type api struct {
	cached, live client.Reader
	writer       client.Writer
	events       events.EventRecorder
	services     services
}

var _ share.API = (*api)(nil)

func (a *api) CachedNodes(ctx context.Context) ([]*corev1.Node, error) {
	var l corev1.NodeList
	err := a.cached.List(ctx, &l, client.UnsafeDisableDeepCopy)
	return pointers(l.Items), err
}

func (a *api) CachedNetworks(ctx context.Context) ([]*v1alpha1.NodeNetwork, error) {
	var l v1alpha1.NodeNetworkList
	err := a.cached.List(ctx, &l, client.UnsafeDisableDeepCopy)
	return pointers(l.Items), err
}

func (a *api) Nodes(ctx context.Context) ([]*corev1.Node, error) {
	var l corev1.NodeList
	err := a.live.List(ctx, &l)
	return pointers(l.Items), err
}

func (a *api) Networks(ctx context.Context) ([]*v1alpha1.NodeNetwork, error) {
	var l v1alpha1.NodeNetworkList
	err := a.live.List(ctx, &l)
	return pointers(l.Items), err
}

func (a *api) Pools(ctx context.Context) ([]*v1alpha1.IPPool, error) {
	var l v1alpha1.IPPoolList
	err := a.live.List(ctx, &l)
	return pointers(l.Items), err
}

func (a *api) Node(ctx context.Context, name string) (*corev1.Node, error) {
	return get(ctx, a.live, name, &corev1.Node{})
}

func (a *api) Network(ctx context.Context, name string) (*v1alpha1.NodeNetwork, error) {
	return get(ctx, a.live, name, &v1alpha1.NodeNetwork{})
}

// get returns an object; nil if it is not there.
func get[T client.Object](ctx context.Context, from client.Reader, name string, into T) (none T, err error) {
	err = from.Get(ctx, types.NamespacedName{Name: name}, into)
	if apierrors.IsNotFound(err) {
		return none, nil
	}
	if err != nil {
		return none, err
	}
	return into, nil
}

func pointers[T any](items []T) (all []*T) {
	all = make([]*T, 0, len(items))
	for i := range items {
		all = append(all, &items[i])
	}
	return all
}

func (a *api) CreateNetwork(ctx context.Context, n *v1alpha1.NodeNetwork) error {
	return a.writer.Create(ctx, n)
}

func (a *api) UpdateNetwork(ctx context.Context, n *v1alpha1.NodeNetwork) error {
	return a.writer.Update(ctx, n)
}

func (a *api) UpdatePool(ctx context.Context, p *v1alpha1.IPPool) error {
	return a.writer.Update(ctx, p)
}

func (a *api) UpdatePoolStatus(ctx context.Context, p *v1alpha1.IPPool) error {
	return a.writer.(client.StatusClient).Status().Update(ctx, p)
}

func (a *api) DeleteNetwork(ctx context.Context, name string, uid types.UID) error {
	n := &v1alpha1.NodeNetwork{}
	n.Name = name
	return a.writer.Delete(ctx, n, client.Preconditions{UID: &uid})
}

// Event makes an event of a pool or a NodeNetwork. The recorder counts those that repeat.
func (a *api) Event(about any, reason, message string) {
	a.events.Eventf(about.(runtime.Object), nil, corev1.EventTypeWarning, reason, "Share", "%s", message)
}

// services remembers the CIDRs of the cluster's services for a while.
type services struct {
	mu    sync.Mutex
	cidrs []netip.Prefix
	until time.Time
}

// keep is how long services remembers.
const keep = time.Minute

// Services returns the CIDRs of ServiceCIDR objects, which Kubernetes has from 1.33 on; none, if it has none.
func (a *api) Services(ctx context.Context) ([]netip.Prefix, error) {
	s := &a.services
	s.mu.Lock()
	defer s.mu.Unlock()
	if time.Now().Before(s.until) {
		return s.cidrs, nil
	}
	var l networkingv1.ServiceCIDRList
	if err := a.live.List(ctx, &l); err != nil && !meta.IsNoMatchError(err) && !apierrors.IsNotFound(err) {
		return nil, err
	}
	s.cidrs, s.until = nil, time.Now().Add(keep)
	for _, c := range l.Items {
		for _, text := range c.Spec.CIDRs {
			if p, err := netip.ParsePrefix(text); err == nil {
				s.cidrs = append(s.cidrs, p)
			}
		}
	}
	return s.cidrs, nil
}

package operator

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/berth-net/berth/api/v1alpha1"
	"github.com/berth-net/berth/internal/share"
)

const (
	soon  = 200 * time.Millisecond // until a pass goes on with what it had no room or no news for
	later = 5 * time.Minute        // until a pool is looked at although nobody changed anything
)

// control sets the controllers up: one looks at pools, one after the other, and one at nodes.
func control(manager ctrl.Manager, sharer *share.Sharer) error {
	cached := manager.GetCache()
	every := func(ctx context.Context) []reconcile.Request {
		var l v1alpha1.IPPoolList
		_ = cached.List(ctx, &l, client.UnsafeDisableDeepCopy) // fails only before the cache is there
		var names []string
		for _, p := range l.Items {
			names = append(names, p.Name)
		}
		return requestsFor(names)
	}
	all := handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, _ client.Object) []reconcile.Request { return every(ctx) })
	networks := networkHandler(every)
	err := ctrl.NewControllerManagedBy(manager).Named("pool").
		Watches(&v1alpha1.IPPool{}, all, builder.WithPredicates(poolChanged)).
		Watches(&v1alpha1.NodeNetwork{}, networks, builder.WithPredicates(networkChanged)).
		Watches(&corev1.Node{}, all, builder.WithPredicates(nodeChanged)).
		Complete(reconcile.Func(func(ctx context.Context, r reconcile.Request) (reconcile.Result, error) {
			began := time.Now()
			again, err := sharer.Pool(ctx, r.Name)
			passSeconds.Observe(time.Since(began).Seconds())
			switch {
			case apierrors.IsConflict(err) || again && err == nil:
				return reconcile.Result{RequeueAfter: soon}, nil // somebody was faster, or there is more
			case err != nil:
				return reconcile.Result{}, err
			}
			return reconcile.Result{RequeueAfter: later}, nil
		}))
	if err != nil {
		return err
	}
	same := handler.EnqueueRequestsFromMapFunc(func(_ context.Context, o client.Object) []reconcile.Request {
		return requestsFor([]string{o.GetName()})
	})
	return ctrl.NewControllerManagedBy(manager).Named("node").
		Watches(&corev1.Node{}, same, builder.WithPredicates(nodeChanged)).
		Watches(&v1alpha1.NodeNetwork{}, same, builder.WithPredicates(networkChanged)).
		WithOptions(controller.Options{MaxConcurrentReconciles: 8}).
		Complete(reconcile.Func(func(ctx context.Context, r reconcile.Request) (reconcile.Result, error) {
			network, err := get(ctx, cached, r.Name, &v1alpha1.NodeNetwork{})
			if err != nil {
				return reconcile.Result{}, err
			}
			node, err := get(ctx, cached, r.Name, &corev1.Node{})
			if err != nil || share.Settled(network, node) {
				return reconcile.Result{}, err
			}
			err = sharer.Node(ctx, r.Name)
			if apierrors.IsConflict(err) {
				return reconcile.Result{RequeueAfter: soon}, nil
			}
			return reconcile.Result{}, err
		}))
}

func requestsFor(names []string) (all []reconcile.Request) {
	for _, name := range names {
		all = append(all, reconcile.Request{NamespacedName: types.NamespacedName{Name: name}})
	}
	return all
}

// networkHandler asks for the pools that a NodeNetwork's change counts for.
func networkHandler(every func(context.Context) []reconcile.Request) handler.EventHandler {
	ask := func(ctx context.Context, was, is *v1alpha1.NodeNetwork, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) {
		names, all := share.NetworkPools(was, is)
		requests := requestsFor(names)
		if all {
			requests = every(ctx)
		}
		for _, r := range requests {
			queue.Add(r)
		}
	}
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
			ask(ctx, nil, e.Object.(*v1alpha1.NodeNetwork), q)
		},
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
			ask(ctx, e.ObjectOld.(*v1alpha1.NodeNetwork), e.ObjectNew.(*v1alpha1.NodeNetwork), q)
		},
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
			ask(ctx, e.Object.(*v1alpha1.NodeNetwork), nil, q)
		},
	}
}

var networkChanged = predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
	return share.NetworkMatters(e.ObjectOld.(*v1alpha1.NodeNetwork), e.ObjectNew.(*v1alpha1.NodeNetwork))
}}

var nodeChanged = predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
	return share.NodeMatters(e.ObjectOld.(*corev1.Node), e.ObjectNew.(*corev1.Node))
}}

var poolChanged = predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
	return share.PoolMatters(e.ObjectOld.(*v1alpha1.IPPool), e.ObjectNew.(*v1alpha1.IPPool))
}}

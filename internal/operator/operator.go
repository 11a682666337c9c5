// Package operator runs internal/share in a cluster: a controller-runtime manager with leader election, caches, metrics and
// health checks. Safety does not rest on leader election, which only spares work.
package operator

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/berth-net/berth/api/v1alpha1"
	"github.com/berth-net/berth/internal/share"
)

// Options are what an operator needs.
type Options struct {
	API       *rest.Config
	Log       *slog.Logger
	Nodes     labels.Selector // that have an agent
	Elect     bool            // wait until no other operator leads
	Namespace string          // of the lease by which operators elect
	Metrics   string          // address, "0" for none
	Health    string          // address, "0" for none
}

// requests are how many requests a second the operator sends at most: a burst of nodes waits for the API server's own limits
// rather than for these.
const requests, burst = 200, 400

// Run runs an operator until ctx ends, or until it leads no more.
func Run(ctx context.Context, o Options) error {
	logger := logr.FromSlogHandler(o.Log.Handler())
	ctrl.SetLogger(logger)
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			return err
		}
	}
	config := rest.CopyConfig(o.API)
	config.QPS, config.Burst = requests, burst
	patience := 10 * time.Second
	manager, err := ctrl.NewManager(config, ctrl.Options{
		Scheme: scheme, Logger: logger,
		LeaderElection: o.Elect, LeaderElectionID: "berth-operator", LeaderElectionNamespace: o.Namespace, LeaderElectionReleaseOnCancel: true,
		Metrics: metricsserver.Options{BindAddress: o.Metrics}, HealthProbeBindAddress: o.Health,
		GracefulShutdownTimeout: &patience,
		Cache: cache.Options{ByObject: map[client.Object]cache.ByObject{
			&corev1.Node{}: {Transform: slimNode}, &v1alpha1.NodeNetwork{}: {Transform: slimNetwork},
		}},
		Client: client.Options{Cache: &client.CacheOptions{DisableFor: []client.Object{&networkingv1.ServiceCIDR{}}}},
	})
	if err != nil {
		return fmt.Errorf("reaching the API server: %w", err)
	}
	if err := manager.AddHealthzCheck("ping", healthz.Ping); err != nil {
		return err
	}
	if err := manager.AddReadyzCheck("ping", healthz.Ping); err != nil {
		return err
	}
	sharer := share.New(&api{
		cached: manager.GetCache(), live: manager.GetAPIReader(), writer: manager.GetClient(), events: manager.GetEventRecorder("berth-operator"),
	}, o.Log)
	sharer.Select = o.Nodes
	if err := control(manager, sharer); err != nil {
		return err
	}
	figures := &figures{cached: manager.GetCache(), elected: manager.Elected(), now: time.Now}
	for _, c := range []prometheus.Collector{passSeconds, figures} {
		if err := metrics.Registry.Register(c); err != nil {
			return fmt.Errorf("registering metrics: %w", err)
		}
	}
	o.Log.Info("the operator starts")
	return manager.Start(ctx)
}

// slimNode leaves of a node what sharing out asks for: ten thousand nodes would take 200 MB otherwise.
func slimNode(o any) (any, error) {
	n, ok := o.(*corev1.Node)
	if !ok {
		return o, nil
	}
	slim := &corev1.Node{TypeMeta: n.TypeMeta, ObjectMeta: n.ObjectMeta}
	slim.ManagedFields, slim.Annotations = nil, nil
	slim.Status.Addresses = n.Status.Addresses
	return slim, nil
}

// slimNetwork leaves out what nobody here asks for. An update of the rest leaves it as it is in the API server: the operator
// never writes a status, and managedFields that are not sent are kept.
func slimNetwork(o any) (any, error) {
	if n, ok := o.(*v1alpha1.NodeNetwork); ok {
		n.ManagedFields, n.Status.Pools = nil, nil
	}
	return o, nil
}

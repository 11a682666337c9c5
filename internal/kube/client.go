package kube

import (
	"context"
	"encoding/json"
	"fmt"

	nadv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/berth-net/berth/api/v1alpha1"
	"github.com/berth-net/berth/internal/config"
	"github.com/berth-net/berth/internal/lease"
)

// Client asks an API server. It knows the few types that an agent reads and writes: client-go's own clients have all types, in
// memory.
type Client struct {
	node   string
	core   *rest.RESTClient // nodes, and the metadata of pods and namespaces
	berth  *rest.RESTClient // Berth's own objects
	events *rest.RESTClient
	audits *rest.RESTClient // for Pods: it has a limit of its own, so that no ADD waits for audits
	pods   seen

	// Of several networks of a pod; nil: pods may not ask for such. Their limits are the kubelet's, which has as much to ask for a pod.
	onePod *rest.RESTClient // one pod's metadata
	nads   *rest.RESTClient // network attachment definitions
}

// The limits of onePod and nads.
const networksQPS, networksBurst = 50, 100

var _ lease.API = (*Client)(nil)

// Connect returns a client, and asks nobody anything yet. agent is what the API server is told of the client.
func Connect(k config.Kubernetes, agent string) (*Client, error) {
	c, err := connect(k.Kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("kubernetes.kubeconfig: %w", err)
	}
	scheme := runtime.NewScheme()
	scheme.AddKnownTypes(corev1.SchemeGroupVersion, &corev1.Node{}, &corev1.NodeList{})
	metav1.AddToGroupVersion(scheme, corev1.SchemeGroupVersion)
	if err := metav1.AddMetaToScheme(scheme); err != nil {
		return nil, fmt.Errorf("kubernetes: %w", err)
	}
	addTypes(scheme)
	addEvents(scheme)
	c.UserAgent = agent
	c.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	own := rest.CopyConfig(c)
	c.GroupVersion, c.APIPath = &corev1.SchemeGroupVersion, "/api"
	c.ContentType = runtime.ContentTypeProtobuf
	c.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	own.GroupVersion, own.APIPath = &v1alpha1.GroupVersion, "/apis"
	own.ContentType = runtime.ContentTypeJSON // the API server has no protobuf of custom resources
	out := &Client{node: k.Node}
	if out.core, err = rest.RESTClientFor(c); err == nil {
		out.audits, err = rest.RESTClientFor(c)
	}
	if err == nil {
		out.berth, err = rest.RESTClientFor(own)
	}
	if err == nil {
		out.events, err = eventsClient(c)
	}
	if err == nil && k.Networks {
		err = out.addNetworks(c, own, scheme)
	}
	if err != nil {
		return nil, fmt.Errorf("kubernetes: %w", err)
	}
	return out, nil
}

// addNetworks makes the clients for several networks of a pod, of the configurations for Kubernetes' objects and for custom ones.
func (c *Client) addNetworks(core, custom *rest.Config, s *runtime.Scheme) (err error) {
	if err = nadv1.AddToScheme(s); err != nil {
		return err
	}
	core, custom = rest.CopyConfig(core), rest.CopyConfig(custom)
	for _, o := range []*rest.Config{core, custom} {
		o.QPS, o.Burst = networksQPS, networksBurst
	}
	custom.GroupVersion = &nadv1.SchemeGroupVersion
	if c.onePod, err = rest.RESTClientFor(core); err == nil {
		c.nads, err = rest.RESTClientFor(custom)
	}
	return err
}

// connect returns how the API server is reached.
func connect(kubeconfig string) (*rest.Config, error) {
	if kubeconfig == "" {
		return rest.InClusterConfig()
	}
	return clientcmd.BuildConfigFromFlags("", kubeconfig)
}

// Network returns this node's NodeNetwork as the cluster's store has it now; nil: there is none.
func (c *Client) Network(ctx context.Context) (*v1alpha1.NodeNetwork, error) {
	var n network
	err := c.berth.Get().Resource("nodenetworks").Name(c.node).Do(ctx).Into(&n)
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("reading the NodeNetwork %s: %w", c.node, err)
	}
	return &n.NodeNetwork, nil
}

// statusPatch is a merge patch (RFC 7386) of what the agent writes to a NodeNetwork. Fields that it lacks stay as they are.
type statusPatch struct {
	Metadata struct {
		ResourceVersion string `json:"resourceVersion"`
	} `json:"metadata"`
	Status struct {
		Requests   []v1alpha1.Request     `json:"requests"`
		Held       []v1alpha1.Block       `json:"held"`
		Addresses  []string               `json:"addresses"`
		Pools      []v1alpha1.PoolFigures `json:"pools"`
		Conditions []metav1.Condition     `json:"conditions"`
	} `json:"status"`
}

// Write implements lease.API.
func (c *Client) Write(ctx context.Context, version string, s v1alpha1.NodeNetworkStatus) (*v1alpha1.NodeNetwork, error) {
	var p statusPatch
	p.Metadata.ResourceVersion = version
	p.Status.Requests, p.Status.Held, p.Status.Addresses = s.Requests, s.Held, s.Addresses
	p.Status.Pools, p.Status.Conditions = s.Pools, s.Conditions
	body, err := json.Marshal(p)
	if err != nil {
		return nil, fmt.Errorf("writing the NodeNetwork %s: %w", c.node, err)
	}
	var n network
	err = c.berth.Patch(types.MergePatchType).Resource("nodenetworks").Name(c.node).SubResource("status").Body(body).Do(ctx).Into(&n)
	switch {
	case apierrors.IsConflict(err), apierrors.IsNotFound(err):
		return nil, fmt.Errorf("writing the NodeNetwork %s: %w: %w", c.node, lease.ErrStale, err)
	case err != nil:
		return nil, fmt.Errorf("writing the NodeNetwork %s: %w", c.node, err)
	}
	return &n.NodeNetwork, nil
}

// Pod asks for a pod's metadata.
func (c *Client) Pod(ctx context.Context, namespace, name string) (lease.Meta, error) {
	return c.meta(ctx, c.core.Get().Resource("pods").Namespace(namespace).Name(name))
}

// Namespace asks for a namespace's metadata, with all labels.
func (c *Client) Namespace(ctx context.Context, name string) (lease.Meta, error) {
	return c.meta(ctx, c.core.Get().Resource("namespaces").Name(name))
}

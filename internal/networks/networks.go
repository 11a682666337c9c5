// Package networks decides which networks a pod gets, and how each is to be made: by what its network's configuration says (delegates,
// clusterNetwork, defaultNetworks), and by what the pod asks for with annotations. It changes nothing. What it has decided is in the
// ledger from the attachment's beginning on; so nobody asks it when a pod goes.
package networks

import (
	"context"

	nadv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/cni"
	"github.com/berth-net/berth/internal/cni/netconf"
	"github.com/berth-net/berth/internal/nad"
)

// Cluster is what the cluster's API server says (package kube). Each method answers within seconds.
type Cluster interface {
	// Asks returns the annotations by which a pod asks for networks: nad.KeyNetworks and nad.KeyDefault. It fails unless the annotations are
	// certainly this pod's.
	Asks(ctx context.Context, pod *api.Pod) (networks, first string, err error)
	// Definition returns a network attachment definition, and nil if there is none.
	Definition(ctx context.Context, namespace, name string) (*nadv1.NetworkAttachmentDefinition, error)
	// Heard returns a channel that is closed once the cluster has said which pods the node has.
	Heard() <-chan struct{}
	// WriteStatus writes a pod's annotation nad.KeyStatus. It succeeds if the pod is gone.
	WriteStatus(ctx context.Context, pod *api.Pod, text string) error
}

// Devices says which devices a pod has, by their resource (package devices).
type Devices interface {
	Devices(ctx context.Context, pod api.Pod) (map[string][]string, error)
}

// Networks decides.
type Networks struct {
	Cluster Cluster // nil: no pod can ask for networks
	Devices Devices // nil: as Cluster
}

// Pod is whose networks are asked for.
type Pod struct {
	*api.Pod        // nil: the runtime has not said it
	Ifname   string // of the first network
	Args     string // CNI_ARGS, for plugins
	// Has reports whether a running pod has a network already: nobody asks what makes such a network. nil: the pod is being attached. A running
	// pod has its first network.
	Has func(label, ifname string) bool
}

// Network is a network that a pod is to have.
type Network struct {
	Label  string // what the pod's status calls it
	Ifname string
	Conf   *netconf.Conf // what the mode gets; nil: a running pod has the network
}

// Of returns the networks of a pod in the order in which they are to be made; the first is the one that the runtime has asked for by c.
func (n *Networks) Of(ctx context.Context, c *netconf.Conf, pod Pod) ([]Network, error) {
	r := resolver{Networks: n, says: c.Networks, pod: pod}
	if r.says == nil {
		r.says = netconf.NoNetworks()
	}
	if err := r.ready(); err != nil {
		return nil, err
	}
	asks, instead, err := r.asks(ctx)
	if err != nil {
		return nil, err
	}
	all, err := r.given(ctx, c, instead)
	if err != nil {
		return nil, err
	}
	selected, bad := nad.Select(asks, nad.Pod{Namespace: r.namespace(), Interface: pod.Ifname, Before: len(all) - 1})
	if bad != nil {
		return nil, bad
	}
	for _, s := range selected {
		one, err := r.selected(ctx, &s)
		if err != nil {
			return nil, err
		}
		all = append(all, one)
	}
	if err := r.assign(ctx, all); err != nil {
		return nil, err
	}
	networks := make([]Network, len(all))
	for i, one := range all {
		if networks[i], err = r.configure(one); err != nil {
			return nil, err
		}
	}
	return networks, leadOnce(networks)
}

// leadOnce refuses a pod of which two networks are to have the default route of one family.
func leadOnce(all []Network) error {
	var whose [2]Network // by family
	for _, n := range all {
		if n.Conf == nil {
			continue
		}
		for _, g := range n.Conf.Gateways {
			other := &whose[0]
			if g.Is6() {
				other = &whose[1]
			}
			if other.Conf != nil {
				return cni.Errorf(cni.CodeConfig, "two default routes", "%s and %s both have default-route for the family of %s; expected one of them", *other, n, g)
			}
			*other = n
		}
	}
	return nil
}

// Common returns the networks that a configuration gives to each pod, as Of would, but without what is a pod's own, such as devices.
func (n *Networks) Common(ctx context.Context, c *netconf.Conf) ([]Network, error) {
	r := resolver{Networks: n, says: c.Networks, pod: Pod{Ifname: commonIfname}}
	if r.says == nil {
		r.says = netconf.NoNetworks()
	}
	if err := r.ready(); err != nil {
		return nil, err
	}
	all, err := r.given(ctx, c, "")
	if err != nil {
		return nil, err
	}
	networks := make([]Network, len(all))
	for i, one := range all {
		if networks[i], err = r.configure(one); err != nil {
			return nil, err
		}
	}
	return networks, nil
}

// commonIfname is how runtimes of Kubernetes call a pod's first interface.
const commonIfname = "eth0"

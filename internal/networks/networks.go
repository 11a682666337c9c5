// Package networks decides which networks a pod gets, and how each is to be made: by what its network's configuration says (delegates,
// clusterNetwork, defaultNetworks), and by what the pod asks for with annotations. It changes nothing. What it has decided is in the
// ledger from the attachment's beginning on; so nobody asks it when a pod goes.
package networks

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	nadv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/cni"
	"github.com/berth-net/berth/internal/cni/netconf"
	"github.com/berth-net/berth/internal/cni/scan"
	"github.com/berth-net/berth/internal/devices"
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

// chosen is a network that has been chosen, and is not configured yet.
type chosen struct {
	Network                // without Conf, unless the network's own configuration is the runtime's
	from    *nad.Network   // nil: Network has all
	asks    *nad.Selection // of from
	given   nad.Given
}

// resolver decides for one pod.
type resolver struct {
	*Networks
	says *netconf.Networks
	pod  Pod
}

// ready refuses pods while the default network is not ready for them.
func (r *resolver) ready() error {
	if r.says.Indicator == "" {
		return nil
	}
	if _, err := os.Stat(r.says.Indicator); err != nil {
		return cni.Errorf(cni.CodeTryAgain, "the default network is not ready", "readinessindicatorfile: %v", err)
	}
	return nil
}

// namespace is the pod's namespace; "" if the runtime has not said it.
func (r *resolver) namespace() string {
	if r.pod.Pod == nil {
		return ""
	}
	return r.pod.Namespace
}

// asks returns what the pod asks for by its annotations.
func (r *resolver) asks(ctx context.Context) (networks, first string, err error) {
	if r.Cluster == nil || r.pod.Pod == nil || r.pod.Name == "" {
		return "", "", nil
	}
	networks, first, err = r.Cluster.Asks(ctx, r.pod.Pod)
	if err != nil {
		return "", "", cni.Errorf(cni.CodeTryAgain, "the agent cannot know which networks the pod asks for", "%v", err)
	}
	return networks, first, nil
}

// given returns the networks that the configuration gives to each pod. instead is the annotation that names another first one.
func (r *resolver) given(ctx context.Context, c *netconf.Conf, instead string) (all []chosen, err error) {
	first := chosen{Network: Network{Label: c.Name, Ifname: r.pod.Ifname, Conf: c}}
	delegates := r.says.Delegates
	switch {
	case r.pod.Has != nil:
	case instead != "":
		s, bad := nad.SelectDefault(instead, r.says.Namespace, r.pod.Ifname)
		if bad != nil {
			return nil, bad
		}
		if first, err = r.byDefinition(ctx, s, r.offered()); err != nil {
			return nil, err
		}
	case len(delegates) > 0:
		if first, err = r.byConfig(delegates[0], c.Name, r.pod.Ifname, r.offered()); err != nil {
			return nil, err
		}
	case r.says.ClusterNetwork != "":
		if first, err = r.byReference(ctx, r.says.ClusterNetwork, r.pod.Ifname, r.offered()); err != nil {
			return nil, err
		}
	}
	all = append(all, first)
	for _, raw := range delegates[min(1, len(delegates)):] {
		one, err := r.byConfig(raw, "", place(len(all)), nad.Given{})
		if err != nil {
			return nil, err
		}
		all = append(all, one)
	}
	if slices.Contains(r.says.SystemNamespaces, r.namespace()) {
		return all, nil
	}
	for _, name := range r.says.DefaultNetworks {
		one, err := r.byReference(ctx, name, place(len(all)), nad.Given{})
		if err != nil {
			return nil, err
		}
		all = append(all, one)
	}
	return all, nil
}

// place is the interface of a network by its place among the pod's networks.
func place(i int) string { return "net" + strconv.Itoa(i) }

// offered is what the runtime passes for the capabilities of the first network's plugins.
func (r *resolver) offered() nad.Given {
	fields, _ := scan.Object(r.says.RuntimeConfig) // an object, or nothing: netconf has checked that
	given := nad.Given{Offered: map[string]json.RawMessage{}}
	for _, f := range fields {
		given.Offered[f.Key] = json.RawMessage(f.Value)
	}
	return given
}

// byConfig returns the network of a configuration that the plugin's own configuration contains.
func (r *resolver) byConfig(raw []byte, name, ifname string, given nad.Given) (chosen, error) {
	one, bad := nad.ParseConfig(raw, name)
	if bad != nil {
		return chosen{}, cni.Errorf(bad.Code, bad.Msg, "delegates: %s", bad.Details)
	}
	return r.network(one, &nad.Selection{Interface: ifname}, given)
}

// byReference returns the network that clusterNetwork or defaultNetworks names: a path, or the name of a definition or, if there is none,
// in a file.
func (r *resolver) byReference(ctx context.Context, ref, ifname string, given nad.Given) (chosen, error) {
	s := &nad.Selection{Interface: ifname}
	if strings.HasPrefix(ref, "/") {
		one, bad := nad.ReadPath(ref)
		if bad != nil {
			return chosen{}, bad
		}
		return r.network(one, s, given)
	}
	namespace, name, spaced := strings.Cut(ref, "/")
	if !spaced {
		namespace, name = r.says.Namespace, ref
	}
	one, err := r.definition(ctx, namespace, name)
	if err != nil {
		return chosen{}, err
	}
	if one == nil {
		var bad *api.Error
		if one, bad = nad.FindFile(r.says.ConfDir, name); bad != nil {
			return chosen{}, bad
		}
	}
	return r.network(one, s, given)
}

// selected returns a network that the pod's annotation asks for.
func (r *resolver) selected(ctx context.Context, s *nad.Selection) (chosen, error) {
	if r.says.Isolation && s.Namespace != r.namespace() && !slices.Contains(r.says.Global(), s.Namespace) {
		return chosen{}, cni.Errorf(cni.CodeConfig, "the pod may not have this network",
			"%s/%s is of another namespace than the pod, and not of %s; namespaceIsolation is set", s.Namespace, s.Name, strings.Join(r.says.Global(), ", "))
	}
	return r.byDefinition(ctx, s, nad.Given{})
}

// byDefinition returns the network of a definition that has to be there.
func (r *resolver) byDefinition(ctx context.Context, s *nad.Selection, given nad.Given) (chosen, error) {
	if label := s.Namespace + "/" + s.Name; r.has(label, s.Interface) { // whatever has become of the definition
		return chosen{Network: Network{Label: label, Ifname: s.Interface}}, nil
	}
	one, err := r.definition(ctx, s.Namespace, s.Name)
	if err == nil && one == nil {
		err = cni.Errorf(cni.CodeTryAgain, "no such network", "there is no network attachment definition %s/%s", s.Namespace, s.Name)
	}
	if err != nil {
		return chosen{}, err
	}
	return r.network(one, s, given)
}

// definition reads a definition; nil: there is none.
func (r *resolver) definition(ctx context.Context, namespace, name string) (*nad.Network, error) {
	if r.Cluster == nil {
		return nil, nil
	}
	def, err := r.Cluster.Definition(ctx, namespace, name)
	if err != nil {
		return nil, cni.Errorf(cni.CodeTryAgain, "the agent cannot know what a network is", "network attachment definition %s/%s: %v", namespace, name, err)
	}
	if def == nil {
		return nil, nil
	}
	one, bad := nad.ParseDefinition(def)
	if bad == nad.ErrInFile {
		found, bad := nad.FindFile(r.says.ConfDir, name)
		if bad != nil {
			return nil, bad
		}
		found.Definition, found.Resource = one.Definition, one.Resource
		return found, nil
	}
	if bad != nil {
		return nil, bad
	}
	return one, nil
}

// network returns a network that has been chosen.
func (r *resolver) network(one *nad.Network, s *nad.Selection, given nad.Given) (chosen, error) {
	n := Network{Label: one.Label(), Ifname: s.Interface}
	if r.has(n.Label, n.Ifname) {
		return chosen{Network: n}, nil
	}
	if s.DefaultRoute != nil && len(s.DefaultRoute) == 0 {
		return chosen{}, cni.Errorf(cni.CodeConfig, "unsupported request for a network", "network %s: default-route is an empty list; expected the address of a gateway", n.Label)
	}
	return chosen{n, one, s, given}, nil
}

// has reports whether a running pod has a network.
func (r *resolver) has(label, ifname string) bool {
	return r.pod.Has != nil && r.pod.Has(label, ifname)
}

// assign gives each network the device of the pod that it asks for by its resource.
func (r *resolver) assign(ctx context.Context, all []chosen) error {
	var asks []devices.Ask
	var of []*chosen
	for i, c := range all {
		if c.from == nil || c.from.Resource == "" {
			continue
		}
		if r.pod.Has != nil {
			return cni.Errorf(cni.CodeConfig, "no device for a running pod", "network %s needs a device of %s, and a pod gets devices at its start only", c.Label, c.from.Resource)
		}
		asks, of = append(asks, devices.Ask{Network: c.Label, Resource: c.from.Resource}), append(of, &all[i])
	}
	if len(asks) == 0 {
		return nil
	}
	if r.Devices == nil || r.pod.Pod == nil {
		return cni.Errorf(cni.CodeConfig, "no devices", "network %s needs a device of %s, and nobody says which devices the pod has", asks[0].Network, asks[0].Resource)
	}
	has, err := r.Devices.Devices(ctx, *r.pod.Pod)
	if err != nil {
		return cni.Errorf(cni.CodeTryAgain, "the agent cannot know which devices the pod has", "%v", err)
	}
	ids, bad := devices.Assign(asks, has)
	if bad != nil {
		return bad
	}
	for i, c := range of {
		c.given.Device = ids[i]
	}
	return nil
}

// configure returns what the mode of a network gets.
func (r *resolver) configure(c chosen) (Network, error) {
	to, one := c.Network, c.from
	if one == nil {
		r.lend(to.Conf)
		return to, nil
	}
	configs, bad := one.Configure(c.asks, c.given)
	if bad != nil {
		return Network{}, bad
	}
	if own := slices.IndexFunc(one.Plugins, func(p nad.Plugin) bool { return p.Type == own }); own >= 0 {
		if len(configs) > 1 {
			return Network{}, cni.Errorf(cni.CodeConfig, "invalid configuration", "network %s: plugin %d is %s, which makes a network alone; expected no other plugin beside it", one.Label(), own+1, one.Plugins[own].Type)
		}
		conf, bad := netconf.ParsePart(one.Name, one.Version, configs[0])
		if bad != nil {
			return Network{}, cni.Errorf(bad.Code, bad.Msg, "network %s: %s", one.Label(), bad.Details)
		}
		conf.Gateways = c.asks.DefaultRoute
		r.lend(conf)
		if conf.IPAM != nil {
			conf.IPAM.DisableGC = one.DisableGC
		}
		to.Conf = conf
		return to, nil
	}
	to.Conf = &netconf.Conf{
		Version: one.Version, Name: one.Name, Type: one.Plugins[0].Type, Mode: netconf.ModeDelegated, Gateways: c.asks.DefaultRoute,
		List: &netconf.List{
			Plugins: configs, Args: r.pod.Args, Folders: []string{r.says.BinDir}, DisableCheck: one.DisableCheck, DisableGC: one.DisableGC,
			Device: c.asks.DeviceID,
		},
	}
	if c.given.Device != "" {
		to.Conf.List.Device, to.Conf.List.Resource = c.given.Device, one.Resource
	}
	return to, nil
}

// lend says what an IPAM plugin gets beside its configuration.
func (r *resolver) lend(c *netconf.Conf) {
	if c != nil && c.IPAM != nil {
		c.IPAM.Args, c.IPAM.Folders = r.pod.Args, []string{r.says.BinDir}
	}
}

// own is the file name of Berth's plugin.
const own = "berth-cni"

func (n Network) String() string { return fmt.Sprintf("network %s as %s", n.Label, n.Ifname) }

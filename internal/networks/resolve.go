package networks

import (
	"context"
	"encoding/json"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/cni"
	"github.com/berth-net/berth/internal/cni/netconf"
	"github.com/berth-net/berth/internal/cni/scan"
	"github.com/berth-net/berth/internal/nad"
)

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
	for _, label := range []string{namespace + "/" + name, name} { // a definition's, and that of a network in a file
		if r.has(label, ifname) { // whatever has become of the definition, and of the file
			return chosen{Network: Network{Label: label, Ifname: ifname}}, nil
		}
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

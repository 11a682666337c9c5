package networks

import (
	"context"
	"fmt"
	"slices"

	"github.com/berth-net/berth/internal/cni"
	"github.com/berth-net/berth/internal/cni/netconf"
	"github.com/berth-net/berth/internal/devices"
	"github.com/berth-net/berth/internal/nad"
)

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

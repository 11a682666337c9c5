package doctor

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/berth-net/berth/internal/config"
	"github.com/berth-net/berth/internal/ground"
	"github.com/berth-net/berth/internal/kernel"
	"github.com/berth-net/berth/internal/kernel/nft"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/stamp"
)

// nobody is the instance whose things doctor makes, in namespaces that only doctor has.
const nobody = "aaaaaaaaaa"

// inNowhere calls f with two network namespaces that end with the call: so f can try what the
// kernel does, and nothing on the node changes. The kernel may load modules meanwhile, as it
// will for the agent.
func inNowhere(f func(node, pod *ns.Netns) error) error {
	var open []*ns.Netns
	defer func() {
		for _, n := range open {
			_ = n.Close()
		}
	}()
	for range 2 {
		n, err := ns.Unbound()
		if err != nil {
			return kernel.Classify(err)
		}
		open = append(open, n)
	}
	return f(open[0], open[1])
}

// refused is the finding of a kernel that does not do what Berth needs.
func refused(err error, fix string) Finding {
	if errors.Is(err, kernel.ErrPermission) {
		return unknown(err)
	}
	return Finding{Bad, "this kernel refuses it: " + err.Error(), fix}
}

// lookLinks makes a link as ADD does, and routes to it.
func lookLinks(_ context.Context, n *Node) Finding {
	v4, v6 := n.families()
	err := inNowhere(func(node, pod *ns.Netns) error {
		c, err := rtnl.Open(node)
		if err != nil {
			return err
		}
		defer c.Close()
		groups, err := stamp.GroupsOf(nobody)
		if err != nil {
			return err
		}
		name := stamp.Link(nobody, nobody)
		if err := c.Do(
			rtnl.AddVeth(rtnl.End{Name: name}, groups.Coming(), rtnl.End{Name: "eth0"}, pod.Fd()),
			rtnl.AddAltName(name, stamp.AltName(name)),
			rtnl.SetLink(name, rtnl.Alias("berth doctor"), rtnl.Group(groups.Live()), rtnl.Up()),
		); err != nil {
			return err
		}
		link, err := c.Link(name)
		if err != nil {
			return err
		}
		if !link.Veth || link.Group != groups.Live() || link.Given != name || link.Alias == "" || !link.Up {
			return fmt.Errorf("a link that lacks something of what it was given: %+v", link)
		}
		for _, f := range []struct {
			used      bool
			pool, pod string
		}{{v4 || !v6, "198.18.0.0/15", "198.18.0.1/32"}, {v6, "2001:db8::/64", "2001:db8::1/128"}} {
			if !f.used {
				continue
			}
			if err := c.Do(
				rtnl.AddRoute(rtnl.Route{Dst: netip.MustParsePrefix(f.pool), Unreachable: true}),
				rtnl.AddRoute(rtnl.Route{Dst: netip.MustParsePrefix(f.pod), Index: link.Index}),
			); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return refused(err, "modprobe veth; for IPv6 pools also boot without ipv6.disable=1. A kernel without them is not for pods (CONFIG_VETH, CONFIG_IPV6)")
	}
	return ok("veth with group, alias and second name, and routes to it")
}

// lookTable writes the whole of an agent's table.
func lookTable(_ context.Context, n *Node) Finding {
	groups, err := stamp.GroupsOf(nobody)
	if err != nil {
		return unknown(err)
	}
	low, high := groups.Dying()
	r := nft.Ruleset{
		Instance: nobody, CutLow: low, CutHigh: high, Live: groups.Live(), Connections: 1024, Masquerade: true,
		Pools:   []netip.Prefix{netip.MustParsePrefix("198.18.0.0/15"), netip.MustParsePrefix("2001:db8::/64")},
		Blocked: []netip.Prefix{netip.MustParsePrefix("169.254.0.0/16")},
	}
	var lacks nft.Parts
	err = inNowhere(func(node, _ *ns.Netns) error {
		tables := nft.Open(node)
		err := tables.Replace(r)
		lacks = tables.Lacks()
		return err
	})
	if err != nil {
		return refused(err, "modprobe nf_tables nft_masq nft_ct (CONFIG_NF_TABLES_INET, CONFIG_NFT_CT, CONFIG_NFT_MASQ)")
	}
	return judgeLacks(lacks)
}

func judgeLacks(lacks nft.Parts) Finding {
	if lacks == 0 {
		return ok("all rules of Berth's table")
	}
	return Finding{Warn, "this kernel does not support some rules of the table: " + ground.Because(lacks),
		"load the modules in brackets (modprobe), or use a kernel that has them; the agent tries again at each sweep"}
}

// onLoopback calls f with a link on which f can try a limit, and with that limit (see inNowhere).
func onLoopback(f func(c *rtnl.Conn, loopback int, rate rtnl.Rate) error) error {
	return inNowhere(func(node, _ *ns.Netns) error {
		c, err := rtnl.Open(node)
		if err != nil {
			return err
		}
		defer c.Close()
		return f(c, 1, rtnl.Rate{Rate: 1_000_000, Burst: 1 << 20})
	})
}

// lookShaping limits what a link sends.
func lookShaping(context.Context, *Node) Finding {
	return judgeShaping(onLoopback(func(c *rtnl.Conn, loopback int, rate rtnl.Rate) error {
		if err := c.Do(rtnl.Shape(loopback, rate)); err != nil {
			return err
		}
		var q rtnl.Qdisc
		if err := c.GetQdisc(loopback, &q); err != nil {
			return err
		}
		if q.Shape != rate {
			return fmt.Errorf("a token bucket with %s, not %s", q, rate)
		}
		return nil
	}))
}

func judgeShaping(err error) Finding {
	switch {
	case err == nil:
		return ok("limits of bandwidth (tbf)")
	case errors.Is(err, kernel.ErrPermission):
		return unknown(err)
	}
	return Finding{Warn, "this kernel refuses limits of bandwidth: " + err.Error(), "modprobe sch_tbf (CONFIG_NET_SCH_TBF); pods that ask for no limits need none"}
}

// lookPolice limits what a link lets in.
func lookPolice(context.Context, *Node) Finding {
	return judgePolice(onLoopback(func(c *rtnl.Conn, loopback int, rate rtnl.Rate) error {
		return c.Police(loopback, rate, 65536, false)
	}))
}

func judgePolice(err error) Finding {
	switch {
	case err == nil:
		return ok("limits of what pods send, at the node (clsact, eBPF)")
	case errors.Is(err, kernel.ErrPermission):
		return unknown(err)
	}
	return Finding{Warn, "this kernel refuses to drop what pods send above their rates: " + err.Error(),
		"modprobe sch_ingress cls_bpf (CONFIG_NET_SCH_INGRESS, CONFIG_NET_CLS_BPF, CONFIG_BPF_SYSCALL; Linux 5.12 or later)"}
}

// lookIdentity asks for the number of a namespace that never comes again.
func lookIdentity(context.Context, *Node) Finding {
	self, err := ns.Self()
	if err != nil {
		return unknown(err)
	}
	defer self.Close()
	return judgeIdentity(self.Ref().ID)
}

func judgeIdentity(id uint64) Finding {
	if id == 0 {
		return Finding{Warn, "this kernel numbers network namespaces by inodes alone", "use Linux 5.14 or later (SO_NETNS_COOKIE)"}
	}
	return ok("the kernel numbers network namespaces once and for all")
}

// lookWireGuard makes a WireGuard device, if the node is to have one.
func lookWireGuard(_ context.Context, n *Node) Finding {
	if c := n.config().Config; c == nil || c.Kubernetes == nil || c.Kubernetes.Routing != config.RoutingWireGuard {
		return ok("kubernetes.routing asks for none")
	}
	return judgeWireGuard(inNowhere(func(node, _ *ns.Netns) error {
		c, err := rtnl.Open(node)
		if err != nil {
			return err
		}
		defer c.Close()
		return c.Do(rtnl.AddWireGuard("wireguard", 1420))
	}))
}

func judgeWireGuard(err error) Finding {
	switch {
	case err == nil:
		return ok("WireGuard devices")
	case errors.Is(err, kernel.ErrPermission):
		return unknown(err)
	}
	return Finding{Bad, "pods of other nodes are out of reach: this kernel refuses WireGuard devices: " + err.Error(),
		"modprobe wireguard (CONFIG_WIREGUARD, Linux 5.6 or newer), or another kubernetes.routing on all nodes"}
}

package nft

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// A bound mapping whose link is a bridge (Mapping.BridgePort) needs more than the rules of bound.go: these see by which link a packet
// leaves, and that is the bridge, behind which the pod's successor is, too. So a second table, of family bridge, has a look at frames
// that leave by a port. There is no connection tracking there that could tell which frames are a mapping's (nf_conntrack_bridge would
// track all that pods send each other). The rules of the first table tell it, by one bit of the packet's mark. The bit begins behind the
// routing, and ends where the packet enters the pod: the kernel clears marks between network namespaces. The frames' addresses suffice
// to judge by: an address has one pod at a time that has mappings (hostports' Vacate), and fragments have no ports.
//
// A frame that the bit came to by mistake passes as long as it goes to the pod; so does every frame to an address without a mapping.
// Agents of several instances can share the bit, because each judges only the addresses of its own mappings.

// boundMark is the bit. These bits have other owners: kube-proxy 0x4000, older kubelets 0x8000, the plugin portmap 0x2000, Calico
// 0xffff0000 (IptablesMarkMask), Cilium 0x0f00 and, for numbers of identities, clusters and IPsec keys, 0xffff00ff and 0xf000, AWS's plugin
// 0x80, Tailscale 0xff0000. No bit is left that Cilium never uses; its IPsec keys are on packets that leave the node by no bridge of pods.
const boundMark = 0x1000

// hooks of family bridge have the numbers of inet's hooks. priorityLastPort is behind what others do with frames on their way out
// (NF_BR_PRI_NAT_SRC, 300), and before br_netfilter (NF_BR_PRI_LAST), which shows bridged packets to inet's rules and does not come back.
const priorityLastPort priority = 400

// bridgeSets returns the sets of a family in the table of family bridge:
//   - bridged has the addresses of pods that have bound mappings and are behind a bridge;
//   - bridgeports has the ports by which the mappings' frames may leave.
func bridgeSets(f family) []set {
	bridged := set{name: "bridged" + f.suffix, keys: concat{f.datatype}, of: f.datatype}
	ports := set{name: "bridgeports" + f.suffix, keys: concat{f.datatype, nftables.TypeIFIndex}}
	ports.of = ports.keys.datatype()
	bridged.family, ports.family = unix.NFPROTO_BRIDGE, unix.NFPROTO_BRIDGE
	return []set{bridged, ports}
}

// bridgePortsOf returns the ports of a family's pods.
func bridgePortsOf(f family, sets []set) map[netip.Addr]int {
	ports := map[netip.Addr]int{}
	for _, s := range sets {
		for _, e := range s.entries {
			if bytes := int(f.datatype.Bytes); s.name == "bridgeports"+f.suffix && len(e.key) == bytes+4 {
				pod, _ := netip.AddrFromSlice([]byte(e.key)[:bytes])
				ports[pod] = int(binary.NativeEndian.Uint32([]byte(e.key)[bytes:]))
			}
		}
	}
	return ports
}

// markBound marks packets of bound mappings for the table of family bridge. It stands where packets have been routed and are not on
// their way out yet: if net.bridge.bridge-nf-call-iptables is 1, a packet from one port of a bridge that is redirected to a pod
// behind the same bridge is never routed, and passes forward before, but postrouting after the ports' rules.
//
//	ct status dnat ct direction original meta nfproto ipv4 meta l4proto . th dport . ip daddr @bound4 meta mark set meta mark | 0x1000
func markBound(f family) rule {
	bound, _ := boundSets(f)
	words, exprs := f.ofBound(bound)
	return rule{
		text: fmt.Sprintf("%s meta mark set meta mark | %#x", words, boundMark),
		exprs: slices.Concat(exprs, []expr.Any{
			&expr.Meta{Key: expr.MetaKeyMARK, Register: reg},
			&expr.Bitwise{
				SourceRegister: reg, DestRegister: reg, Len: 4,
				Mask: binary.NativeEndian.AppendUint32(nil, ^uint32(boundMark)), Xor: binary.NativeEndian.AppendUint32(nil, boundMark),
			},
			&expr.Meta{Key: expr.MetaKeyMARK, SourceRegister: true, Register: reg},
		}),
	}
}

// bridge returns the table of family bridge; nil: the ruleset has none.
func (r Ruleset) bridge(lacks Parts) *table {
	if r.Live == 0 || !r.HostPorts || lacks&(HostPorts|Bridges) != 0 {
		return nil
	}
	in := portEntries(r.Ports)
	t := &table{family: unix.NFPROTO_BRIDGE, name: r.Table()}
	out := chain{name: "ports_out", typ: "filter", hook: hookPostrouting, priority: priorityLastPort, rules: []rule{acceptUnmarked()}}
	for _, f := range []family{ipv4, ipv6} {
		for _, s := range bridgeSets(f) {
			s.entries = in[s.name]
			t.sets = append(t.sets, s)
		}
		out.rules = append(out.rules, dropByOtherPort(f))
	}
	t.chains = []chain{out}
	return t
}

// acceptUnmarked lets frames that are no mapping's skip the other rules.
//
//	meta mark & 0x1000 == 0 accept
func acceptUnmarked() rule {
	return rule{
		text: fmt.Sprintf("meta mark & %#x == 0 accept", boundMark),
		exprs: []expr.Any{
			&expr.Meta{Key: expr.MetaKeyMARK, Register: reg}, mask(boundMark),
			&expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: make([]byte, 4)},
			&expr.Verdict{Kind: expr.VerdictAccept},
		},
	}
}

// dropByOtherPort drops a mapping's frames that leave by another port than the pod's.
//
//	ip daddr @bridged4 ip daddr . oif != @bridgeports4 drop
func dropByOtherPort(f family) rule {
	ethertype := uint16(unix.ETH_P_IP)
	if f.proto == ipv6.proto {
		ethertype = unix.ETH_P_IPV6
	}
	return rule{
		text: fmt.Sprintf("%[1]s daddr @bridged%[2]s %[1]s daddr . oif != @bridgeports%[2]s drop", f.word, f.suffix),
		exprs: slices.Concat([]expr.Any{
			&expr.Meta{Key: expr.MetaKeyPROTOCOL, Register: reg},
			&expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: binary.BigEndian.AppendUint16(nil, ethertype)},
		}, f.match(f.daddr, "bridged"+f.suffix, false), f.withLink(f.daddr, expr.MetaKeyOIF), []expr.Any{
			&expr.Lookup{SourceRegister: reg, SetName: "bridgeports" + f.suffix, Invert: true},
			&expr.Verdict{Kind: expr.VerdictDrop},
		}),
	}
}

// closeBridged returns ports without those that need the table of family bridge: they are closed.
func closeBridged(ports []Port) []Port {
	ports = slices.Clone(ports)
	for i := range ports {
		if ports[i].BridgePort != 0 {
			ports[i].Via = NoLink
		}
	}
	return ports
}

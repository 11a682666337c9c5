package main

import "slices"

// subject is a list that the command judges.
type subject struct {
	name      string // of its list, and in the tables
	group     string // the table that has it
	what      string
	ours      bool
	stateDirs []string
	hooks     string
}

// The groups of lists, in the order of their tables.
const (
	ofBerth  = "Berth"
	ofBridge = "bridge"
	ofOthers = "other interfaces"
	ofChains = "chains"
	ofMeta   = "meta-plugins"
)

var groups = []string{ofBerth, ofBridge, ofOthers, ofChains, ofMeta}

// The folders in which plugins keep files: hostLocal are those of the reference plugins.
var (
	hostLocal = []string{"/var/lib/cni", "/run/cni"}
	berths    = []string{"/var/lib/berth", "/run/berth"}
	both      = slices.Concat(berths, hostLocal)
)

var subjects = []subject{
	{name: "berth", group: ofBerth, what: "mode routed, both families; berthd with a pool of a /24", ours: true, stateDirs: berths, hooks: "berth"},
	{name: "berth-macvlan", group: ofBerth, what: "mode macvlan on the node's uplink; a pool with a segment", ours: true, stateDirs: berths, hooks: "segment"},
	{name: "berth-bridge", group: ofBerth, what: "mode bridge on a bridge of the node; a pool with a segment", ours: true, stateDirs: berths, hooks: "segment"},
	{name: "networks", group: ofBerth, what: "ptp as delegate for the first network, and a second one of mode routed", ours: true, stateDirs: both, hooks: "networks"},
	{name: "behind", group: ofBerth, what: "a first network of mode routed, and macvlan with tuning as delegates for a second one", ours: true, stateDirs: both, hooks: "networks"},

	{name: "bridge", group: ofBridge, what: "dual stack, with masquerade (iptables)", stateDirs: hostLocal},
	{name: "bridge-ipv6", group: ofBridge, what: "IPv6 only, with masquerade (iptables)", stateDirs: hostLocal},
	{name: "bridge-nftables", group: ofBridge, what: "dual stack, with masquerade (nftables)", stateDirs: hostLocal},
	{name: "bridge-hairpin", group: ofBridge, what: "dual stack, with hairpin and isolated ports", stateDirs: hostLocal},
	{name: "bridge-spoofchk", group: ofBridge, what: "IPv4, with macspoofchk", stateDirs: hostLocal},
	{name: "bridge-layer2", group: ofBridge, what: "without an IPAM plugin", stateDirs: hostLocal},
	{name: "bridge-vlan", group: ofBridge, what: "IPv4, in a VLAN", stateDirs: hostLocal},
	{name: "static", group: ofBridge, what: "IPv4, with the IPAM plugin static", stateDirs: hostLocal},

	{name: "ptp", group: ofOthers, what: "ptp with masquerade", stateDirs: hostLocal},
	{name: "ptp-dual", group: ofOthers, what: "ptp, dual stack, with masquerade", stateDirs: hostLocal},
	{name: "ptp-ipv6", group: ofOthers, what: "ptp, IPv6 only", stateDirs: hostLocal},
	{name: "macvlan", group: ofOthers, what: "macvlan on the node's uplink", stateDirs: hostLocal},
	{name: "ipvlan", group: ofOthers, what: "ipvlan on the node's uplink", stateDirs: hostLocal},
	{name: "vlan", group: ofOthers, what: "vlan on the node's uplink", stateDirs: hostLocal},
	{name: "host-device", group: ofOthers, what: "host-device, which gives one device of the node away", stateDirs: hostLocal},
	{name: "tap", group: ofOthers, what: "tap", stateDirs: hostLocal},
	{name: "dummy", group: ofOthers, what: "dummy", stateDirs: hostLocal},
	{name: "loopback", group: ofOthers, what: "loopback", stateDirs: hostLocal},

	{name: "chain", group: ofChains, what: "bridge with masquerade, portmap, firewall and tuning", stateDirs: hostLocal},
	{name: "portmap-nftables", group: ofChains, what: "bridge, dual stack, and portmap (nftables)", stateDirs: hostLocal},
	{name: "firewall", group: ofChains, what: "bridge, dual stack, and firewall (iptables, ingressPolicy same-bridge)", stateDirs: hostLocal},
	{name: "bandwidth", group: ofChains, what: "ptp and bandwidth", stateDirs: hostLocal},
	{name: "tuning", group: ofChains, what: "macvlan and tuning: MAC, MTU and sysctls", stateDirs: hostLocal},
	{name: "sbr", group: ofChains, what: "macvlan and sbr", stateDirs: hostLocal},
	{name: "tap-sbr", group: ofChains, what: "tap and sbr", stateDirs: hostLocal},
	{name: "vrf", group: ofChains, what: "ptp and vrf", stateDirs: hostLocal},
	{name: "berth-chained", group: ofChains, what: "ptp, and Berth in mode chained: host ports and limits. What is bad is ptp's", stateDirs: both, hooks: "berth"},
	{name: "kindnet", group: ofChains, what: "the list that kindnet writes: ptp, dual stack, and portmap", stateDirs: append([]string{"/run/cni-ipam-state"}, hostLocal...)},

	{name: "flannel", group: ofMeta, what: "flannel's plugin, which has bridge make the network, and portmap, as kube-flannel writes it", stateDirs: hostLocal, hooks: "flannel"},
	{name: "multus", group: ofMeta, what: "Multus without a cluster: ptp, dual stack, and macvlan with tuning as delegates", stateDirs: hostLocal},
}

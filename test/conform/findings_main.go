package main

// Lists whose first plugin is bridge, and those of them that masquerade.
var (
	ofBridges    = []string{"bridge", "bridge-ipv6", "bridge-nftables", "bridge-hairpin", "bridge-spoofchk", "bridge-layer2", "static", "chain", "portmap-nftables", "firewall"}
	masquerading = []string{"bridge", "bridge-ipv6", "bridge-nftables", "ptp", "ptp-dual", "chain"}
)

// ofMain are findings in the plugins that make interfaces.
var ofMain = []finding{
	{
		name: "masquerade-left", plugin: "bridge and ptp", title: "DEL leaves the masquerading rules if the network namespace is gone",
		text:     "DEL reads the addresses whose rules it has to remove from the interface in the network namespace, and not from prevResult. If the network namespace is gone, if DEL has none, or if a killed DEL has already deleted the interface, the pod's rules and its chain in the table nat stay for ever; so do the rules of the backend nftables, and the chains of iptables that DEL makes there only to empty them. They slow down each new connection of the node, and rewrite the packets of later pods that get the address. DEL should clean up also then (CNI 1.1.0, section 2, DEL).",
		upstream: "plugins#810 is the same with bridge's DEL without a network namespace.",
		shows:    []sight{{"leak/netns-gone", masquerading}, {"leak/no-netns", masquerading}, {"leak/kill-del", masquerading}},
	},
	{
		name: "spoofcheck-left", plugin: "bridge and ptp", title: "DEL leaves the rules of macspoofchk if the network namespace is gone",
		text:  "DEL of bridge removes the rules against false MACs last, and returns earlier if there is no network namespace. The chains and the rule of the pod in the bridge's table nat stay for ever, and each frame passes the rule. Their names are of the container's id: DEL could remove them without the namespace, and should (CNI 1.1.0, section 2, DEL).",
		shows: []sight{{"leak/netns-gone", []string{"bridge-spoofchk"}}, {"leak/no-netns", []string{"bridge-spoofchk"}}, {"leak/kill-del", []string{"bridge-spoofchk"}}},
	},
	{
		name: "masquerade-shared", plugin: "bridge and ptp", title: "DEL of one of a container's two interfaces fails while the other one is there",
		text:  "The chain in the table nat has its name from the network and the container alone, \"for historical reasons\", as the source says. A container's two interfaces share it: DEL of the one empties it, so that the other one is no longer masqueraded, and then cannot delete it, and fails. A runtime may add a container to a network several times, each time with another interface name (CNI 1.1.0, section 2, ADD), and DEL should undo what the ADD of its own interface did (section 2, DEL).",
		shows: []sight{{"parallel/same-pod", masquerading}},
	},
	{
		name: "failed-add-veth", plugin: "bridge and ptp", title: "a failed ADD of bridge leaves the veth",
		text:     "If the IPAM plugin fails, bridge returns without removing the interface. The DEL that has to follow removes it; if the runtime has ended by then, nobody does. The check is the suite's own.",
		upstream: "plugins#29, which was closed as stale.",
		shows:    []sight{{"add/failed-undone", ofBridges}},
	},
	{
		name: "bridge-mac", plugin: "bridge and ptp", title: "after a failed first ADD, bridge fails the next one",
		text:     "A failed ADD leaves a bridge without ports, whose MAC is random. The next ADD adds a port, so that the bridge takes the port's MAC, and then fails to set the MAC back: `could not set bridge's mac: invalid argument`. So the first pod of a node fails twice. The check is the suite's own.",
		upstream: "plugins#620, which was closed as stale.",
		shows:    []sight{{"add/after-failed", ofBridges}},
	},
	{
		name: "bridge-check", plugin: "bridge and ptp", title: "CHECK of bridge fails if the network has no IPAM plugin",
		text:  "ADD and DEL of bridge leave the IPAM plugin out if the configuration has none, for networks of layer 2. CHECK executes it nevertheless, by an empty name, and fails. CHECK right after ADD must succeed (CNI 1.1.0, section 2, CHECK): a runtime that uses CHECK takes every such pod for broken.",
		shows: []sight{{"check/well", []string{"bridge-layer2"}}},
	},
	{
		name: "host-device-again", plugin: "host-device", title: "the second DEL fails",
		text:     "DEL looks for the device in the container, where it is no longer after the first DEL. DEL must succeed again (CNI 1.1.0, section 2, DEL). Runtimes repeat DEL until it succeeds: such a pod never ends.",
		upstream: "plugins#773 is the same with a renamed device.",
		shows:    []sight{{"del/idempotent", []string{"host-device"}}},
	},
	{
		name: "host-device-netns", plugin: "host-device", title: "DEL without a network namespace keeps the address",
		text:     "If the network namespace is gone DEL fails before it calls the IPAM plugin; without CNI_NETNS it succeeds, and does not call it either. DEL should free the address also then (CNI 1.1.0, section 2, DEL). After a reboot all addresses are lost.",
		upstream: "plugins#1196.",
		shows:    []sight{{"del/netns-gone", []string{"host-device"}}, {"del/without-netns", []string{"host-device"}}, {"leak/reboot", []string{"host-device"}}},
	},
	{
		name: "tap-rename", plugin: "tap", title: "ADD takes another's interface if the name is in use",
		text:  "createTap makes the device under a temporary name, and renames it. If that fails, because the container already has an interface of the name, the code returns the error only if it cannot find the temporary device. So ADD goes on with the interface that was there: it gives it the new address, and reports it as its own; DEL then deletes it. ADD must fail instead (CNI 1.1.0, section 2, ADD), and the temporary device stays in the container.",
		shows: []sight{{"add/existing-interface", []string{"tap", "tap-sbr"}}},
	},
	{
		name: "loopback-version", plugin: "loopback", title: "addresses of a result in 0.4.0 lack their version",
		text:  "ADD makes the result with the request's cniVersion instead of the library's newest one, so that the library sees no need to convert it. Each address of a result of 0.4.0 must have \"version\" (0.4.0, Result). Runtimes that sort addresses by it miss these.",
		shows: []sight{{"add/result", []string{"loopback"}}},
	},
}

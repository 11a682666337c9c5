package main

// ofFurther are findings in plugins that stand behind another one in a list.
var ofFurther = []finding{
	{
		name: "firewall-prev-result", plugin: "firewall", title: "DEL without prevResult leaves the rules",
		text:     "firewall's DEL does nothing without prevResult, which is missing after a failed or killed ADD: the rules that let the pod's address through CNI-FORWARD stay, and hold for the next pod with that address, too. 0.4.0 (Parameters, DEL) and 1.1.0 (section 2, DEL) recommend that DEL cleans up as much as it can.",
		upstream: "plugins PR 390 has the reason.",
		shows: []sight{
			{"add/failed-leaves-nothing", []string{"chain", "firewall"}}, {"del/without-prev-result", []string{"chain", "firewall"}},
			{"leak/kill-add", []string{"chain", "firewall"}}, {"chain/failed-add", []string{"chain", "firewall"}},
		},
	},
	{
		name: "portmap-conntrack", plugin: "portmap", title: "after DEL the node still sends flows to the pod's address",
		text:     "portmap forgets the UDP flows of a host port at the next ADD that maps the port, and not at DEL. Until they expire, packets of such a flow go to nobody, or to the next pod with the address. The check is the suite's own.",
		upstream: "plugins#1190; #123 has brought what ADD does.",
		shows:    []sight{{"leak/conntrack", []string{"chain", "kindnet", "flannel", "portmap-nftables"}}},
	},
	{
		name: "tuning-backup", plugin: "tuning", title: "DEL without a network namespace leaves the backup of the interface",
		text:  "ADD notes the MAC, the MTU and the modes that the interface had in /run/cni/tuning, one file for each attachment. DEL removes the file only after it has set the interface back, in the network namespace, and hides the error if that is gone. DEL should clean up also then (CNI 1.1.0, section 2, DEL): one file stays for each such pod, until a reboot.",
		shows: []sight{{"del/netns-gone", []string{"tuning"}}, {"del/without-netns", []string{"tuning"}}},
	},
	{
		name: "sbr-check", plugin: "sbr", title: "CHECK of the plugin before sbr fails",
		text:     "sbr moves all routes of the interface to a table of its own, and prints the result of the plugin before it unchanged. That plugin's CHECK must succeed (CNI 1.1.0, section 2, CHECK), and looks for the routes where they no longer are: for the default route, which the result still has, and for the route of the address's subnet, which no result has. It would take both sides to mend this.",
		upstream: "plugins#297 expected it.",
		shows:    []sight{{"check/well", []string{"sbr", "tap-sbr"}}},
	},
	{
		name: "sbr-netns", plugin: "sbr", title: "DEL fails if the network namespace is gone, and makes a file in its place",
		text:  "sbr takes a lock on the path of the network namespace, and so creates an ordinary file there if it is gone. Then it fails because that file is no network namespace. libcni calls DEL of the list in reverse, and stops here: the plugin that has the address never hears of it. The file makes the next runtime think that there is a network namespace. DEL should succeed (CNI 1.1.0, section 2, DEL).",
		shows: []sight{{"del/netns-gone", []string{"sbr", "tap-sbr"}}},
	},
	{
		name: "sbr-no-netns", plugin: "sbr", title: "DEL fails without CNI_NETNS",
		text:  "sbr takes its lock on an empty path, and fails. CNI_NETNS is optional in DEL (CNI 1.1.0, section 2, DEL). As above, the address is never freed.",
		shows: []sight{{"del/without-netns", []string{"sbr", "tap-sbr"}}},
	},
}

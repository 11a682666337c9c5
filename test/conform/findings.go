package main

import (
	"slices"
	"strings"
)

// finding explains what a check finds with some subjects.
type finding struct {
	check    string   // the check's name without its version
	subjects []string // nil: all
	why      string   // with the upstream issue, if one is known
}

// findings are the explanations. The first finding that fits counts.
var findings = []finding{
	{"version/echo", nil, "all of these plugins use skel, which ignores the request's version and always answers in its own. No issue is known."},
	{"add/error-version", nil, "an error has no `cniVersion`, because `types.Error` of the CNI library has no such field (cni PR 408, which was closed, would have added it). 0.4.0 requires the field; later versions say \"should\"."},
	{"add/failed-undone", []string{"bridge", "chain"}, "when the IPAM plugin fails, bridge leaves the veth (plugins#29). The specification says \"should\": the DEL that has to follow removes the veth."},
	{"add/after-failed", []string{"bridge", "chain"}, "a failed ADD leaves a bridge without ports. The next ADD fails because it cannot set that bridge's MAC (plugins#620)."},
	{"add/failed-leaves-nothing", []string{"chain"}, "firewall's DEL does nothing without prevResult, and after a failed ADD there is none: firewall's rules in CNI-FORWARD stay. DEL succeeds, and 1.1.0 asks for no more; 0.4.0 says that DEL should clean up as much as possible (plugins PR 390 has the reason)."},
	{"del/without-prev-result", []string{"chain"}, "firewall's DEL does nothing without prevResult: firewall's rules in CNI-FORWARD stay. DEL succeeds, and 1.1.0 asks for no more; 0.4.0 says that DEL should clean up as much as possible (plugins PR 390 has the reason)."},
	{"del/netns-not-one", []string{"bridge", "chain"}, "DEL fails (`unknown FS magic`) if the path is an ordinary file, which an unmount leaves, and does not free the address. DEL succeeds if the path is gone (plugins#685 was only about that). The specification says \"should\"."},
	{"del/netns-not-one", nil, "DEL fails (`unknown FS magic`) if the path is an ordinary file, which an unmount leaves. DEL succeeds if the path is gone (plugins#685 was only about that). The specification says \"should\"."},
	{"del/idempotent", []string{"host-device"}, "DEL looks for the device in the container, but at the second DEL the device is back on the node (plugins#773 is the same with a renamed device)."},
	{"del/netns-gone", []string{"host-device"}, "DEL fails because the network namespace is gone, before it frees the address (plugins#1196)."},
	{"del/without-netns", []string{"host-device"}, "DEL without a network namespace does nothing, and does not free the address (plugins#1196 shows the line)."},
	{"leak/netns-gone", []string{"bridge", "ptp", "chain"}, "DEL reads the addresses from the interface in the network namespace. Without the addresses DEL leaves the masquerading rules (plugins#810 is the same with bridge's DEL without a network namespace)."},
	{"leak/no-netns", []string{"bridge", "ptp", "chain"}, "DEL without a network namespace frees only the address, and leaves the masquerading rules (plugins#810, for bridge)."},
	{"leak/netns-gone", []string{"host-device"}, "see del/netns-gone (plugins#1196)."},
	{"leak/no-netns", []string{"host-device"}, "see del/without-netns (plugins#1196)."},
	{"leak/reboot", []string{"host-device"}, "after a reboot the network namespace is gone: see del/netns-gone (plugins#1196)."},
	{"leak/kill-del", []string{"bridge", "ptp", "chain"}, "if DEL is killed after it deleted the interface, the next DEL finds no addresses, and leaves the masquerading rules (see leak/netns-gone)."},
	{"leak/kill-add", []string{"chain"}, "an ADD that is killed has no result, and firewall's DEL does nothing without prevResult (plugins PR 390)."},
	{"leak/kill-add", []string{"host-device"}, "if ADD is killed while the device has another name or is in the container, the node loses the device."},
	{"leak/kill-del", []string{"host-device"}, "if DEL is killed while the device has another name or is in the container, the node loses the device, and the next DEL fails."},
	{"leak/conntrack", []string{"chain"}, "portmap forgets the UDP flows of a host port at the next ADD that maps it (plugins#123), not at DEL (plugins#1190)."},
	{"chain/failed-add", []string{"chain"}, "firewall's DEL does nothing without prevResult, and after a failed ADD there is none (plugins PR 390)."},
	{"parallel/same-pod", []string{"bridge", "chain"}, "both interfaces of a container share one iptables chain for masquerading, because the chain has the container's id alone as its name (\"for historical reasons\", says the source). The DEL of the second interface empties the chain and cannot remove it. No issue is known."},
	{"gc/delegated", nil, "the plugins do not forward GC to the IPAM plugin, as 1.1.0 requires (plugins#1013 for bridge, #1014 for ptp)."},
	{"gc/unlisted", nil, "GC succeeds and does nothing: the plugins' source has no GC yet (plugins#1013 for bridge, #1014 for ptp, #1047 for host-local). The specification says \"should\"."},
	{"gc/empty-list", nil, "GC succeeds and does nothing: the plugins' source has no GC yet (plugins#1047 for host-local). The specification says \"should\"."},
}

// explain returns why a check is bad with a subject; "" if no explanation is known.
func explain(subject, check string) string {
	base, _, _ := strings.Cut(check, "@")
	for _, f := range findings {
		if f.check == base && (len(f.subjects) == 0 || slices.Contains(f.subjects, subject)) {
			return f.why
		}
	}
	return ""
}

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

// findings are the explanations. The first one that fits counts.
var findings = []finding{
	{"version/echo", nil, "skel, which all of these plugins use, does not look at the request's version and always answers in its own. No issue is known."},
	{"add/error-version", nil, "an error has no `cniVersion`, since `types.Error` of the CNI library has no such field (cni PR 408, which was closed, would have added it). 0.4.0 requires it; later versions say \"should\"."},
	{"add/failed-undone", []string{"bridge", "chain"}, "the veth stays when the IPAM plugin fails (plugins#29). The specification says \"should\": the DEL that has to follow does remove it."},
	{"add/after-failed", []string{"bridge", "chain"}, "a bridge that a failed ADD made, and that has no port any more, is in the way of the next: its MAC cannot be set (plugins#620)."},
	{"add/failed-leaves-nothing", []string{"chain"}, "firewall's DEL does nothing without prevResult, and a failed ADD has none: its rules in CNI-FORWARD stay. It succeeds, which is all that 1.1.0 asks then; 0.4.0 says that as much as possible should be cleaned up (the reason is in plugins PR 390)."},
	{"del/without-prev-result", []string{"chain"}, "firewall's DEL does nothing without prevResult: its rules in CNI-FORWARD stay. It succeeds, which is all that 1.1.0 asks then; 0.4.0 says that as much as possible should be cleaned up (the reason is in plugins PR 390)."},
	{"del/netns-not-one", []string{"bridge", "chain"}, "a path that is but a file, as an unmount leaves it, is an error (`unknown FS magic`), and the address is not given back; a path that is gone is no error (plugins#685 was about that only). The specification says \"should\"."},
	{"del/netns-not-one", nil, "a path that is but a file, as an unmount leaves it, is an error (`unknown FS magic`); a path that is gone is none (plugins#685 was about that only). The specification says \"should\"."},
	{"del/idempotent", []string{"host-device"}, "the device is looked for in the container, and at the second DEL it is back on the node (plugins#773 is the same of a device that was renamed)."},
	{"del/netns-gone", []string{"host-device"}, "DEL ends at the network namespace that is gone, before the address is given back (plugins#1196)."},
	{"del/without-netns", []string{"host-device"}, "DEL without a network namespace does nothing, and the address is not given back (plugins#1196 shows the line)."},
	{"leak/netns-gone", []string{"bridge", "ptp", "chain"}, "the addresses are read from the interface in the network namespace; without them the masquerading rules stay (plugins#810 is the same of bridge's DEL without a network namespace)."},
	{"leak/no-netns", []string{"bridge", "ptp", "chain"}, "DEL without a network namespace frees the address only: the masquerading rules stay (plugins#810, of bridge)."},
	{"leak/netns-gone", []string{"host-device"}, "see del/netns-gone (plugins#1196)."},
	{"leak/no-netns", []string{"host-device"}, "see del/without-netns (plugins#1196)."},
	{"leak/reboot", []string{"host-device"}, "after a reboot the network namespace is gone: see del/netns-gone (plugins#1196)."},
	{"leak/kill-del", []string{"bridge", "ptp", "chain"}, "killed after the interface is gone, DEL finds no addresses the next time: the masquerading rules stay (see leak/netns-gone)."},
	{"leak/kill-add", []string{"chain"}, "no result was kept of the ADD that was killed, and firewall's DEL does nothing without prevResult (plugins PR 390)."},
	{"leak/kill-add", []string{"host-device"}, "killed while the device has another name or is in the container, it is lost to the node."},
	{"leak/kill-del", []string{"host-device"}, "killed while the device has another name or is in the container, it is lost to the node; DEL then fails."},
	{"leak/conntrack", []string{"chain"}, "portmap forgets the UDP flows of a host port at the next ADD that maps it (plugins#123), not at DEL (plugins#1190)."},
	{"chain/failed-add", []string{"chain"}, "firewall's DEL does nothing without prevResult, and a failed ADD has none (plugins PR 390)."},
	{"parallel/same-pod", []string{"bridge", "chain"}, "both interfaces of a container share one iptables chain for masquerading, named by the container's id alone (\"for historical reasons\", says the source): the DEL of the second empties it and cannot remove it. No issue is known."},
	{"gc/delegated", nil, "GC does not reach the IPAM plugin, which 1.1.0 requires (plugins#1013 for bridge, #1014 for ptp)."},
	{"gc/unlisted", nil, "GC is answered with success and does nothing: the plugins' source has no GC yet (plugins#1013 for bridge, #1014 for ptp, #1047 for host-local). The specification says \"should\"."},
	{"gc/empty-list", nil, "GC is answered with success and does nothing: the plugins' source has no GC yet (plugins#1047 for host-local). The specification says \"should\"."},
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

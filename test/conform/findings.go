package main

import (
	"slices"
	"strings"
)

// finding explains what a check finds at some subjects.
type finding struct {
	check    string   // without its version
	subjects []string // none: all but Berth
	why      string   // with the upstream issue, if one is known
}

// findings are the explanations, the first that fits first.
var findings = []finding{
	{"version/echo", nil, "skel, which all of these plugins use, does not look at the request's version and always answers in its own. No issue is known."},
	{"add/error-version", nil, "an error has no `cniVersion`, since `types.Error` of the CNI library has no such field. 0.4.0 requires it; later versions no longer say so for every error (cni#827)."},
	{"add/failed-undone", []string{"bridge", "chain"}, "the veth stays when the IPAM plugin fails. The specification leaves that to the DEL that follows, which does remove it; until then it is there (plugins#29)."},
	{"add/after-failed", []string{"bridge", "chain"}, "what the failed ADD left is in the way of the next: the bridge's MAC cannot be set (plugins#620)."},
	{"add/failed-leaves-nothing", []string{"chain"}, "firewall's DEL does nothing without prevResult, and a failed ADD has none: its rules in CNI-FORWARD stay."},
	{"del/without-prev-result", []string{"chain"}, "firewall's DEL does nothing without prevResult: its rules in CNI-FORWARD stay (the reason is in plugins PR 390)."},
	{"del/netns-not-one", nil, "a path that is but a file, as an unmount leaves it, is an error (`unknown FS magic`), where a path that is gone is none: plugins#685 was about the latter only."},
	{"del/idempotent", []string{"host-device"}, "the device is looked for in the container, and at the second DEL it is back on the node."},
	{"del/netns-gone", []string{"host-device"}, "DEL ends at the network namespace that is gone, before the address is given back (plugins#1196)."},
	{"del/without-netns", []string{"host-device"}, "DEL without a network namespace does nothing, and the address is not given back (cni#1167, plugins#1196)."},
	{"leak/netns-gone", []string{"bridge", "chain"}, "the addresses are read from the interface in the network namespace; without them the masquerading rules stay (plugins#810)."},
	{"leak/no-netns", []string{"bridge", "chain"}, "DEL without a network namespace frees the address only: the masquerading rules stay (plugins#810)."},
	{"leak/netns-gone", []string{"host-device"}, "see del/netns-gone (plugins#1196)."},
	{"leak/no-netns", []string{"host-device"}, "see del/without-netns (cni#1167, plugins#1196)."},
	{"leak/reboot", []string{"host-device"}, "after a reboot the network namespace is gone: see del/netns-gone (plugins#1196)."},
	{"leak/kill-del", []string{"bridge", "chain"}, "killed after the interface is gone, DEL finds no addresses the next time: the masquerading rules stay (plugins#810)."},
	{"leak/kill-add", []string{"chain"}, "no result was kept of the ADD that was killed, and firewall's DEL does nothing without prevResult (plugins PR 390)."},
	{"leak/kill-add", []string{"host-device"}, "killed while the device has another name or is in the container, it is lost to the node."},
	{"leak/kill-del", []string{"host-device"}, "killed while the device has another name or is in the container, it is lost to the node; DEL then fails."},
	{"leak/conntrack", []string{"bridge"}, "nobody forgets the flows of a pod that goes: they meet the next one that has its address (plugins#123 and #1190 are what that does to port maps)."},
	{"leak/conntrack", []string{"chain"}, "portmap does not forget the UDP flows of the pod's host ports (plugins#1190)."},
	{"chain/failed-add", []string{"chain"}, "firewall's DEL does nothing without prevResult, and a failed ADD has none (plugins PR 390)."},
	{"parallel/same-pod", []string{"bridge", "chain"}, "both interfaces of a container share one chain for masquerading, named by the container's id: the DEL of the first cannot remove it. No issue is known."},
	{"gc/delegated", nil, "GC does not reach the IPAM plugin, which 1.1.0 requires."},
	{"gc/unlisted", nil, "GC is answered with success and does nothing: \"FIXME GC\" in the plugins' source. The specification says \"should\"."},
	{"gc/empty-list", nil, "GC is answered with success and does nothing: \"FIXME GC\" in the plugins' source."},
}

// explain returns why a subject does not hold a check; "" is unknown.
func explain(subject, check string) string {
	base, _, _ := strings.Cut(check, "@")
	for _, f := range findings {
		if f.check == base && (len(f.subjects) == 0 || slices.Contains(f.subjects, subject)) {
			return f.why
		}
	}
	return ""
}

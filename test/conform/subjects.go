package main

import "github.com/berth-net/berth/conform"

// subject is a list that the command judges.
type subject struct {
	name      string // of its list, and in the table
	what      string
	ours      bool
	stateDirs []string
	hooks     string
}

// judgement is a subject with its report.
type judgement struct {
	subject
	*conform.Report
}

// hostLocal are the folders in which the reference plugins keep files.
var hostLocal = []string{"/var/lib/cni", "/run/cni"}

var subjects = []subject{
	{name: "berth", what: "Berth, routed mode, IPv4 and IPv6; berthd with a pool of a /24", ours: true,
		stateDirs: []string{"/var/lib/berth", "/run/berth"}, hooks: "berth"},
	{name: "bridge", what: "bridge with masquerade, and host-local", stateDirs: hostLocal},
	{name: "ptp", what: "ptp with masquerade, and host-local", stateDirs: hostLocal},
	{name: "macvlan", what: "macvlan on the node's uplink, and host-local", stateDirs: hostLocal},
	{name: "chain", what: "bridge, portmap, firewall and tuning, and host-local", stateDirs: hostLocal},
	{name: "host-device", what: "host-device, which gives one device of the node away, and host-local", stateDirs: hostLocal},
}

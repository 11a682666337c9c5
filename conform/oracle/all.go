package oracle

import "slices"

// further are the functions that read what LookAll reads beyond Look.
var further = []reader{
	{"setting", settings}, {"sysctl", allSysctls}, {"socket", sockets}, {"nexthop", nexthops}, {"addrlabel", addressLabels},
	{"mptcp", mptcpEndpoints}, {"xfrm", xfrm}, {"fdb", fdb}, {"multicast", multicast}, {"control", control}, {"program", programs},
}

// LookAll is Look with more sections, and with all sysctls of the network namespace. It is for those who look at a node of
// their own seldom: it takes several times as long, and has what anybody on a node that is in use may change.
func LookAll() (State, error) {
	usual := slices.DeleteFunc(slices.Clone(readers), func(r reader) bool { return r.section == "sysctl" })
	return look(slices.Concat(usual, further))
}

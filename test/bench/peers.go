package main

import "fmt"

// contestant is a plugin, or a chain of them, with its configuration.
type contestant struct {
	name  string
	agent bool // needs berthd
	// before says that the contestant's programs come from another build.
	before bool
	// ports says that the contestant's pods ask for host ports.
	ports bool
	// rates says that the contestant's pods ask for limits of bandwidth.
	rates bool
	// config returns the elements of the network configuration's list of plugins. dir is
	// the folder in which the contestant may keep state.
	config func(dir string) string
}

// Names of contestants that others are compared with.
const (
	bareName  = "bare" // the lowest floor
	floorName = "noop" // a plugin that does nothing, by the CNI project's skeleton
	berthName = "berth"
	waitName  = "berth+wait"
	wasName   = "before" // Berth of another build
)

// floors are plugins that do nothing.
var floors = []string{bareName, floorName}

// contestants are the contestants in the order of the tables. All give a pod one IPv4 address,
// because with IPv6 the reference plugins wait for duplicate address detection. Only the last
// contestant shows how long Berth takes for both families.
var contestants = []contestant{
	{name: bareName, config: func(string) string { return `{"type": "bare"}` }},
	{name: floorName, config: func(string) string { return `{"type": "noop"}` }},
	{name: "ptp", config: func(dir string) string {
		return fmt.Sprintf(`{"type": "ptp", "ipMasq": false, "ipam": %s}`, hostLocal(dir, "10.200.0.0/15"))
	}},
	{name: "bridge", config: func(dir string) string {
		return fmt.Sprintf(`{"type": "bridge", "bridge": "bench0", "isGateway": true, "ipMasq": false, "ipam": %s}`,
			hostLocal(dir, "10.202.0.0/15"))
	}},
	{name: berthName, agent: true, config: berthConfig(`"pool": "v4"`)},
	{name: waitName, agent: true, config: berthConfig(`"pool": "v4", "wait": true`)},
	{name: "berth+dual", agent: true, config: berthConfig(`"pool": "dual"`)},
}

// was is the contestant that -before adds.
var was = contestant{name: wasName, agent: true, before: true, config: berthConfig(`"pool": "v4"`)}

// wasPools are the pools of that contestant's agent.
var wasPools = []string{"v4=10.128.0.0/12"}

// agentPools are the pools of the agent that bench measures.
var agentPools = []string{"v4=10.64.0.0/12", "dual=10.80.0.0/12,fd88::/64"}

func hostLocal(dir, subnet string) string {
	return fmt.Sprintf(`{"type": "host-local", "dataDir": %q, "ranges": [[{"subnet": %q}]], "routes": [{"dst": "0.0.0.0/0"}]}`,
		dir, subnet)
}

func berthConfig(keys string) func(dir string) string {
	return func(dir string) string {
		return fmt.Sprintf(`{"type": "berth-cni", "root": %q, %s}`, dir, keys)
	}
}

func names(cs []contestant) []string {
	var all []string
	for _, c := range cs {
		all = append(all, c.name)
	}
	return all
}

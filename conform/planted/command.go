package main

import (
	"fmt"
	"os/exec"
	"strings"
)

// commands are faults that leave something of the node's network for each pod: commands of iproute2, divided by semicolons. %d is the
// pod's number, which is below 100. A command behind "-" may fail, because it is for the first pod.
var commands = map[string]string{
	"nexthop-left":       "ip nexthop add id 1%[1]d blackhole",
	"address-label-left": "ip addrlabel add prefix 2001:db8:%[1]d::/48 label 200",
	"mptcp-left":         "ip mptcp endpoint add 198.51.100.%[1]d signal",
	"xfrm-policy-left":   "ip xfrm policy add src 198.51.100.%[1]d/32 dst 198.51.100.254/32 dir out",
	"fdb-left":           "-ip link add planted0 type bridge; -ip link set eth1 master planted0; bridge fdb add 02:00:00:00:00:%02[1]d dev eth1 master static",
	"multicast-left":     "ip maddress add 01:80:c2:00:00:%02[1]d dev eth0",
	"tc-filter-left":     "-tc qdisc add dev eth0 ingress; tc filter add dev eth0 parent ffff: protocol ip prio 1%[1]d u32 match ip dst 198.51.100.%[1]d/32 flowid 1:1",
	"tc-class-left":      "-tc qdisc add dev eth0 root handle 1: htb; tc class add dev eth0 parent 1: classid 1:1%[1]d htb rate 1mbit",
}

// command executes one of commands.
func (c *call) command(lines string) error {
	for _, line := range strings.Split(fmt.Sprintf(lines, c.number()), "; ") {
		f := strings.Fields(strings.TrimPrefix(line, "-"))
		if out, err := exec.Command(f[0], f[1:]...).CombinedOutput(); err != nil && !strings.HasPrefix(line, "-") {
			return fmt.Errorf("%s: %w: %s", line, err, out)
		}
	}
	return nil
}

package oracle

import (
	"fmt"
	"net"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// families are the address families whose routes and rules the oracle reads.
var families = []struct {
	number int
	name   string
}{{netlink.FAMILY_V4, "inet"}, {netlink.FAMILY_V6, "inet6"}}

// routes is `ip route show table all`, both families.
func routes() ([]string, error) {
	name, err := linkNames()
	if err != nil {
		return nil, err
	}
	var lines []string
	for _, family := range families {
		everyTable := &netlink.Route{Table: unix.RT_TABLE_UNSPEC}
		all, err := netlink.RouteListFiltered(family.number, everyTable, netlink.RT_FILTER_TABLE)
		if err != nil {
			return nil, fmt.Errorf("listing %s routes: %w", family.name, err)
		}
		for _, r := range all {
			lines = append(lines, routeLine(family.name, r, name))
		}
	}
	return lines, nil
}

// routeTypes are the names that ip(8) gives to the RTN_ constants.
var routeTypes = [...]string{"unspec", "unicast", "local", "broadcast", "anycast", "multicast",
	"blackhole", "unreachable", "prohibit", "throw", "nat", "xresolve"}

func routeLine(family string, r netlink.Route, name map[int]string) string {
	var line strings.Builder
	kind := fmt.Sprintf("type-%d", r.Type)
	if r.Type < len(routeTypes) {
		kind = routeTypes[r.Type]
	}
	fmt.Fprintf(&line, "route %s %s %s", family, kind, prefix(r.Dst, "default"))
	if r.LinkIndex != 0 {
		fmt.Fprintf(&line, " dev %s", name[r.LinkIndex])
	}
	if r.Gw != nil {
		fmt.Fprintf(&line, " via %s", r.Gw)
	}
	for _, hop := range r.MultiPath {
		fmt.Fprintf(&line, " nexthop via %s dev %s weight %d", hop.Gw, name[hop.LinkIndex], hop.Hops+1)
	}
	fmt.Fprintf(&line, " table %d proto %d metric %d scope %d", r.Table, r.Protocol, r.Priority, r.Scope)
	if r.Src != nil {
		fmt.Fprintf(&line, " src %s", r.Src)
	}
	if r.Flags&unix.RTNH_F_ONLINK != 0 {
		line.WriteString(" onlink")
	}
	if r.MTU != 0 {
		fmt.Fprintf(&line, " mtu %d", r.MTU)
	}
	return line.String()
}

// rules is `ip rule`, both families.
func rules() ([]string, error) {
	var lines []string
	for _, family := range families {
		all, err := netlink.RuleList(family.number)
		if err != nil {
			return nil, fmt.Errorf("listing %s rules: %w", family.name, err)
		}
		for _, r := range all {
			lines = append(lines, ruleLine(family.name, r))
		}
	}
	return lines, nil
}

func ruleLine(family string, r netlink.Rule) string {
	var line strings.Builder
	fmt.Fprintf(&line, "rule %s priority %d", family, r.Priority)
	if r.Invert {
		line.WriteString(" not")
	}
	fmt.Fprintf(&line, " from %s to %s", prefix(r.Src, "all"), prefix(r.Dst, "all"))
	if r.IifName != "" {
		fmt.Fprintf(&line, " iif %s", r.IifName)
	}
	if r.OifName != "" {
		fmt.Fprintf(&line, " oif %s", r.OifName)
	}
	if r.Mask != nil {
		fmt.Fprintf(&line, " fwmark %#x/%#x", r.Mark, *r.Mask)
	}
	if r.Sport != nil {
		fmt.Fprintf(&line, " sport %d-%d", r.Sport.Start, r.Sport.End)
	}
	if r.Dport != nil {
		fmt.Fprintf(&line, " dport %d-%d", r.Dport.Start, r.Dport.End)
	}
	if r.UIDRange != nil {
		fmt.Fprintf(&line, " uidrange %d-%d", r.UIDRange.Start, r.UIDRange.End)
	}
	fmt.Fprintf(&line, " ipproto %d tos %d tun_id %d table %d goto %d type %d proto %d suppress %d,%d",
		r.IPProto, r.Tos, r.TunID, r.Table, r.Goto, r.Type, r.Protocol, r.SuppressIfgroup, r.SuppressPrefixlen)
	return line.String()
}

// prefix writes a CIDR. For a CIDR that has all addresses it returns the parameter everything.
func prefix(n *net.IPNet, everything string) string {
	if n == nil {
		return everything
	}
	if ones, _ := n.Mask.Size(); ones == 0 {
		return everything
	}
	return n.String()
}

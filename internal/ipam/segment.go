package ipam

import (
	"fmt"
	"net/netip"
	"slices"
)

// Segment is a network of layer 2 that the node, or a link of the node, is on, and of whose addresses a pool has some. The pods of such a
// pool are hosts of that network: no route of the node leads to them, and they have the network's own gateways.
type Segment struct {
	Subnets  []netip.Prefix // at most one of each family
	Gateways []netip.Addr   // at most one of each family, in the subnet of its family
}

// Subnet returns the network of an address; false if the segment has no such network.
func (s *Segment) Subnet(a netip.Addr) (netip.Prefix, bool) {
	i := slices.IndexFunc(s.Subnets, func(p netip.Prefix) bool { return p.Contains(a) })
	if i < 0 {
		return netip.Prefix{}, false
	}
	return s.Subnets[i], true
}

// Gateway returns the gateway of an address's family; false if the segment has none.
func (s *Segment) Gateway(a netip.Addr) (netip.Addr, bool) {
	i := slices.IndexFunc(s.Gateways, func(g netip.Addr) bool { return g.Is4() == a.Is4() })
	if i < 0 {
		return netip.Addr{}, false
	}
	return s.Gateways[i], true
}

// check reports why a pool's CIDRs cannot be of the segment.
func (s *Segment) check(cidrs []netip.Prefix) error {
	if len(s.Subnets) == 0 {
		return fmt.Errorf("segment has no subnet")
	}
	for i, p := range s.Subnets {
		if err := CheckCIDR(p); err != nil {
			return fmt.Errorf("segment: subnet %w", err)
		}
		if slices.ContainsFunc(s.Subnets[:i], func(o netip.Prefix) bool { return o.Addr().Is4() == p.Addr().Is4() }) {
			return fmt.Errorf("segment: %s is a second subnet of its family: want at most one of each", p)
		}
	}
	for i, g := range s.Gateways {
		subnet, in := s.Subnet(g)
		switch {
		case !in:
			return fmt.Errorf("segment: gateway %s is in none of its subnets", g)
		case isEnd(subnet, g):
			return fmt.Errorf("segment: gateway %s is no host's address in %s", g, subnet)
		case slices.ContainsFunc(s.Gateways[:i], func(o netip.Addr) bool { return o.Is4() == g.Is4() }):
			return fmt.Errorf("segment: %s is a second gateway of its family: want at most one of each", g)
		}
	}
	for _, c := range cidrs {
		subnet, in := s.Subnet(c.Addr())
		if !in || c.Bits() < subnet.Bits() {
			return fmt.Errorf("%s is in no subnet of its segment", c)
		}
		if first, last := usable(c); c.Bits() > subnet.Bits() && first == 0 && (isEnd(subnet, c.Addr()) || last == 1 && isEnd(subnet, c.Addr().Next())) {
			return fmt.Errorf("%s has an address of %s that no host can have", c, subnet)
		}
		if i := slices.IndexFunc(s.Gateways, c.Contains); i >= 0 {
			return fmt.Errorf("%s has the address of the gateway %s", c, s.Gateways[i])
		}
	}
	return nil
}

// isEnd reports whether an address is the network's own one or, in IPv4, its broadcast address: no host has it.
func isEnd(subnet netip.Prefix, a netip.Addr) bool {
	if a.BitLen()-subnet.Bits() <= 1 {
		return false // RFC 3021, RFC 6164
	}
	return a == subnet.Addr() || a.Is4() && !subnet.Contains(a.Next())
}

// checkSegments returns an error if a CIDR of another pool is within a segment's subnets: the pool's route would take the addresses
// away from the segment. Pools of one segment may share its subnets.
func checkSegments(pools []PoolConfig) error {
	for _, p := range pools {
		if p.Segment == nil {
			continue
		}
		for _, o := range pools {
			if o.Segment != nil {
				continue
			}
			for _, c := range o.CIDRs {
				if i := slices.IndexFunc(p.Segment.Subnets, c.Overlaps); i >= 0 {
					return fmt.Errorf("pool %s: %s overlaps the subnet %s of pool %s", o.Name, c, p.Segment.Subnets[i], p.Name)
				}
			}
		}
	}
	return nil
}

package ipam

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"
)

// PoolConfig is a pool in the agent's configuration.
type PoolConfig struct {
	Name     string         // see ValidName
	CIDRs    []netip.Prefix // in the order in which they are used; of one or both families
	Cooldown time.Duration  // how long a freed address rests; 0: not at all
	Segment  *Segment       // nil: routes of the node lead to the pool's addresses
}

// ValidName reports whether s can name a pool: 1 to 63 of a-z, 0-9 and -, the
// first of them not -.
func ValidName(s string) bool {
	if s == "" || len(s) > 63 || s[0] == '-' {
		return false
	}
	for i := range len(s) {
		if c := s[i]; (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
			return false
		}
	}
	return true
}

// unfit are the ranges whose addresses no pod can have.
var unfit = []struct {
	prefix netip.Prefix
	what   string
}{
	{netip.MustParsePrefix("0.0.0.0/8"), "means this network (RFC 1122)"},
	{netip.MustParsePrefix("127.0.0.0/8"), "is loopback"},
	{netip.MustParsePrefix("169.254.0.0/16"), "is link-local, and contains the pods' gateway"},
	{netip.MustParsePrefix("224.0.0.0/4"), "is multicast"},
	{netip.MustParsePrefix("255.255.255.255/32"), "is broadcast"},
	{netip.MustParsePrefix("::/128"), "is the unspecified address"},
	{netip.MustParsePrefix("::1/128"), "is loopback"},
	{netip.MustParsePrefix("::ffff:0:0/96"), "is IPv4 mapped to IPv6: write it as IPv4"},
	{netip.MustParsePrefix("fe80::/10"), "is link-local"},
	{netip.MustParsePrefix("ff00::/8"), "is multicast"},
}

// Validate checks pools by themselves and against each other: names are valid and differ,
// each pool has a CIDR, and cooldowns are not below zero. No CIDR has host bits set,
// overlaps a range that pods cannot use, or overlaps another CIDR of any pool. The CIDRs of a pool with a segment are
// in the segment's subnets, which no CIDR of a pool without one overlaps.
func Validate(pools []PoolConfig) error {
	type owned struct {
		prefix netip.Prefix
		pool   string
	}
	var all []owned
	names := make(map[string]bool)
	for _, p := range pools {
		switch {
		case !ValidName(p.Name):
			return fmt.Errorf("pool name %.80q: want 1 to 63 of a-z, 0-9 and -, not beginning with -", p.Name)
		case names[p.Name]:
			return fmt.Errorf("pool %s: two pools have this name", p.Name)
		case len(p.CIDRs) == 0:
			return fmt.Errorf("pool %s has no CIDR", p.Name)
		case p.Cooldown < 0:
			return fmt.Errorf("pool %s: cooldown %s is below zero", p.Name, p.Cooldown)
		}
		names[p.Name] = true
		for _, c := range p.CIDRs {
			if err := CheckCIDR(c); err != nil {
				return fmt.Errorf("pool %s: %w", p.Name, err)
			}
			all = append(all, owned{c, p.Name})
		}
		if p.Segment != nil {
			if err := p.Segment.check(p.CIDRs); err != nil {
				return fmt.Errorf("pool %s: %w", p.Name, err)
			}
		}
	}
	// Two prefixes either do not overlap, or one contains the other. So in this order, if
	// any two overlap, two neighbours do.
	slices.SortStableFunc(all, func(a, b owned) int { return comparePrefix(a.prefix, b.prefix) })
	for i := 1; i < len(all); i++ {
		a, b := all[i-1], all[i]
		switch {
		case a.prefix == b.prefix && a.pool == b.pool:
			return fmt.Errorf("pool %s lists %s twice", a.pool, a.prefix)
		case a.prefix.Overlaps(b.prefix):
			return fmt.Errorf("pool %s: %s overlaps %s of pool %s", b.pool, b.prefix, a.prefix, a.pool)
		}
	}
	return checkSegments(pools)
}

// CheckCIDR reports why no pool may have a CIDR: it is not valid, has bits set beyond its length,
// or has addresses that no pod can have.
func CheckCIDR(c netip.Prefix) error {
	if !c.IsValid() {
		return fmt.Errorf("invalid CIDR")
	}
	if meant := c.Masked(); meant != c {
		return fmt.Errorf("%s has bits set beyond /%d: is %s meant?", c, c.Bits(), meant)
	}
	for _, u := range unfit {
		if c.Overlaps(u.prefix) {
			return fmt.Errorf("%s cannot be used: %s %s", c, u.prefix, u.what)
		}
	}
	return nil
}

// comparePrefix sorts prefixes by first address; of two with the same one, the larger prefix
// comes first.
func comparePrefix(a, b netip.Prefix) int {
	return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
}

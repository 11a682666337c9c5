package ipam

import (
	"fmt"
	"math"
	"net/netip"
	"testing"
)

func TestUsable(t *testing.T) {
	for _, tt := range []struct {
		cidr, first, last string
		size              uint64
	}{
		{"10.0.0.7/32", "10.0.0.7", "10.0.0.7", 1},
		{"10.0.0.6/31", "10.0.0.6", "10.0.0.7", 2},
		{"10.0.0.4/30", "10.0.0.5", "10.0.0.6", 2},
		{"10.1.2.0/24", "10.1.2.1", "10.1.2.254", 254},
		{"10.88.0.0/16", "10.88.0.1", "10.88.255.254", 65534},
		{"10.0.0.0/8", "10.0.0.1", "10.255.255.254", 1<<24 - 2},
		{"fd00::7/128", "fd00::7", "fd00::7", 1},
		{"fd00::6/127", "fd00::6", "fd00::7", 2},
		{"fd00::4/126", "fd00::5", "fd00::7", 3},
		{"fd00:1::/80", "fd00:1::1", "fd00:1::ffff:ffff:ffff", 1<<48 - 1},
		{"fd00:1::/64", "fd00:1::1", "fd00:1::ffff:ffff:ffff:fffe", math.MaxUint64 - 1},
		{"fd00:1::/48", "fd00:1::1", "fd00:1::ffff:ffff:ffff:fffe", math.MaxUint64 - 1},
		{"fd00:1:0:8000::/49", "fd00:1:0:8000::1", "fd00:1:0:8000:ffff:ffff:ffff:fffe", math.MaxUint64 - 1},
	} {
		c := newCIDR(netip.MustParsePrefix(tt.cidr))
		got := fmt.Sprint(c.addr(c.first), c.addr(c.last), c.size())
		want(t, tt.cidr+" "+got, tt.cidr+" "+fmt.Sprint(tt.first, " ", tt.last, " ", tt.size))
		for _, off := range []uint64{c.first, c.last} {
			if back, ok := c.offset(c.addr(off)); back != off || !ok {
				t.Errorf("%s: offset(addr(%d)) = %d, %v", tt.cidr, off, back, ok)
			}
		}
		for a, in := range map[netip.Addr]bool{
			c.addr(c.first): true, c.addr(c.last): true,
			c.addr(c.first).Prev(): false, c.addr(c.last).Next(): false,
		} {
			if _, ok := c.offset(a); ok != in && c.prefix.Contains(a) {
				t.Errorf("%s: %s can be given out: %v", tt.cidr, a, ok)
			}
		}
	}
}

// TestTable compares the table's search with a plain one, also for nested CIDRs.
func TestTable(t *testing.T) {
	var cidrs []*cidr
	for _, s := range []string{
		"10.0.0.0/8", "10.0.0.0/16", "10.0.0.0/24", "10.0.0.128/25", "10.0.3.0/24", "10.3.0.0/16", "10.255.255.255/32",
		"11.0.0.0/31", "fd00::/8", "fd00::/64", "fd00::8:0/112", "fe00::/128",
	} {
		cidrs = append(cidrs, newCIDR(netip.MustParsePrefix(s)))
	}
	table := newTable(cidrs)
	for _, c := range cidrs {
		for _, a := range []netip.Addr{c.prefix.Addr().Prev(), c.prefix.Addr(), c.addr(c.last), c.addr(c.last).Next(), c.addr(c.last).Next().Next()} {
			var best *cidr
			for _, o := range cidrs {
				if o.prefix.Contains(a) && (best == nil || o.prefix.Bits() > best.prefix.Bits()) {
					best = o
				}
			}
			if got := table.find(a); got != best {
				t.Errorf("%s: found %v, want %v", a, got, best)
			}
		}
	}
}

package ipam

import (
	"net/netip"
	"strings"
	"testing"
)

// segmentOf returns a segment; what has a length is a subnet, and anything else a gateway.
func segmentOf(words ...string) *Segment {
	s := &Segment{}
	for _, w := range words {
		if strings.Contains(w, "/") {
			s.Subnets = append(s.Subnets, netip.MustParsePrefix(w))
		} else {
			s.Gateways = append(s.Gateways, netip.MustParseAddr(w))
		}
	}
	return s
}

func TestValidateSegment(t *testing.T) {
	lan := func(s *Segment, cidrs ...string) PoolConfig {
		p := poolOf("lan", cidrs...)
		p.Segment = s
		return p
	}
	both := segmentOf("192.168.1.0/24", "fd00:1::/64", "192.168.1.1", "fd00:1::1")
	second := lan(both, "192.168.1.64/28")
	second.Name = "second"
	for _, tt := range []struct {
		pools []PoolConfig
		want  string // "" for none
	}{
		{[]PoolConfig{lan(both, "192.168.1.192/26", "fd00:1::1000/116"), poolOf("a", "10.0.0.0/24")}, ""},
		{[]PoolConfig{lan(both, "192.168.1.192/26"), second}, ""},
		{[]PoolConfig{lan(segmentOf("192.168.1.0/24"), "192.168.1.0/24")}, ""},
		{[]PoolConfig{lan(segmentOf("192.168.1.0/31"), "192.168.1.0/32")}, ""},
		{[]PoolConfig{lan(both, "192.168.1.9/32")}, ""},
		{[]PoolConfig{lan(&Segment{}, "192.168.1.192/26")}, "pool lan: segment has no subnet"},
		{[]PoolConfig{lan(segmentOf("192.168.1.9/24"), "192.168.1.192/26")}, "subnet 192.168.1.9/24 has bits set"},
		{[]PoolConfig{lan(segmentOf("192.168.1.0/24", "192.168.2.0/24"), "192.168.1.192/26")}, "192.168.2.0/24 is a second subnet"},
		{[]PoolConfig{lan(segmentOf("192.168.1.0/24", "192.168.2.1"), "192.168.1.192/26")}, "gateway 192.168.2.1 is in none of its subnets"},
		{[]PoolConfig{lan(segmentOf("192.168.1.0/24", "192.168.1.255"), "192.168.1.192/26")}, "gateway 192.168.1.255 is no host's address"},
		{[]PoolConfig{lan(segmentOf("192.168.1.0/24", "192.168.1.1", "192.168.1.2"), "192.168.1.192/26")}, "192.168.1.2 is a second gateway"},
		{[]PoolConfig{lan(both, "192.168.2.0/26")}, "192.168.2.0/26 is in no subnet of its segment"},
		{[]PoolConfig{lan(both, "192.168.0.0/23")}, "192.168.0.0/23 is in no subnet of its segment"},
		{[]PoolConfig{lan(both, "192.168.1.0/26")}, "192.168.1.0/26 has the address of the gateway 192.168.1.1"},
		{[]PoolConfig{lan(both, "192.168.1.255/32")}, "192.168.1.255/32 has an address of 192.168.1.0/24 that no host can have"},
		{[]PoolConfig{lan(both, "192.168.1.254/31")}, "192.168.1.254/31 has an address of 192.168.1.0/24 that no host can have"},
		{[]PoolConfig{lan(both, "fd00:1::/128")}, "fd00:1::/128 has an address of fd00:1::/64 that no host can have"},
		{[]PoolConfig{lan(both, "192.168.1.192/26"), poolOf("a", "192.168.1.64/28")}, "pool a: 192.168.1.64/28 overlaps the subnet 192.168.1.0/24 of pool lan"},
		{[]PoolConfig{poolOf("a", "192.168.0.0/16"), lan(both, "192.168.1.192/26")}, "overlaps"},
	} {
		err := Validate(tt.pools)
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%v:\ngot  %v\nwant %s", tt.pools, err, tt.want)
		}
	}
}

// Every address that a pool gives out is a host's in its subnet, and has the gateway of its family.
func TestSegment(t *testing.T) {
	s := segmentOf("192.168.1.0/24", "fd00:1::/64", "192.168.1.1")
	for addr, want := range map[string]string{"192.168.1.9": "192.168.1.0/24 192.168.1.1", "fd00:1::9": "fd00:1::/64 none", "192.168.2.9": "none 192.168.1.1"} {
		a, got := netip.MustParseAddr(addr), "none"
		if p, ok := s.Subnet(a); ok {
			got = p.String()
		}
		if g, ok := s.Gateway(a); ok {
			got += " " + g.String()
		} else {
			got += " none"
		}
		if got != want {
			t.Errorf("%s has %s, want %s", addr, got, want)
		}
	}
}

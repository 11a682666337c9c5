package ipam

import (
	"net/netip"
	"strings"
	"testing"
)

func TestValidate(t *testing.T) {
	invalid := poolOf("a")
	invalid.CIDRs = []netip.Prefix{{}}
	below := poolOf("a", "10.0.0.0/8")
	below.Cooldown = -1
	for _, tt := range []struct {
		pools []PoolConfig
		want  string // "" for none
	}{
		{nil, ""},
		{[]PoolConfig{poolOf("a-0", "10.0.0.0/24", "fd00::/64", "10.0.1.0/24"), poolOf("0b", "10.0.2.0/32")}, ""},
		{[]PoolConfig{poolOf("", "10.0.0.0/24")}, `pool name "": want 1 to 63 of a-z, 0-9 and -, not beginning with -`},
		{[]PoolConfig{poolOf("-a", "10.0.0.0/24")}, `pool name "-a": want 1`},
		{[]PoolConfig{poolOf("A", "10.0.0.0/24")}, `pool name "A": want 1`},
		{[]PoolConfig{poolOf(strings.Repeat("x", 64), "10.0.0.0/24")}, `xxx": want 1 to 63`},
		{[]PoolConfig{poolOf(strings.Repeat("x", 63), "10.0.0.0/24")}, ``},
		{[]PoolConfig{poolOf("a", "10.0.0.0/24"), poolOf("a", "10.0.1.0/24")}, "pool a: two pools have this name"},
		{[]PoolConfig{poolOf("a")}, "pool a has no CIDR"},
		{[]PoolConfig{invalid}, "pool a: invalid CIDR"},
		{[]PoolConfig{below}, "pool a: cooldown -1ns is below zero"},
		{[]PoolConfig{poolOf("a", "10.0.0.1/24")}, "pool a: 10.0.0.1/24 has bits set beyond /24: is 10.0.0.0/24 meant?"},
		{[]PoolConfig{poolOf("a", "fd00::1/64")}, "pool a: fd00::1/64 has bits set beyond /64: is fd00::/64 meant?"},
		{[]PoolConfig{poolOf("a", "10.0.0.0/24", "10.0.0.0/24")}, "pool a lists 10.0.0.0/24 twice"},
		{[]PoolConfig{poolOf("a", "10.0.5.0/24"), poolOf("b", "10.9.0.0/24", "10.0.0.0/16")}, "pool a: 10.0.5.0/24 overlaps 10.0.0.0/16 of pool b"},
		{[]PoolConfig{poolOf("a", "10.0.0.0/8", "10.0.0.0/24", "10.3.0.0/16")}, "pool a: 10.0.0.0/24 overlaps 10.0.0.0/8 of pool a"},
		{[]PoolConfig{poolOf("a", "0.0.0.0/0")}, "pool a: 0.0.0.0/0 cannot be used: 0.0.0.0/8 means this network"},
		{[]PoolConfig{poolOf("a", "127.1.0.0/16")}, "127.0.0.0/8 is loopback"},
		{[]PoolConfig{poolOf("a", "169.254.1.0/24")}, "169.254.0.0/16 is link-local"},
		{[]PoolConfig{poolOf("a", "239.0.0.0/24")}, "224.0.0.0/4 is multicast"},
		{[]PoolConfig{poolOf("a", "255.255.255.0/24")}, "255.255.255.255/32 is broadcast"},
		{[]PoolConfig{poolOf("a", "::/0")}, "::/128 is the unspecified address"},
		{[]PoolConfig{poolOf("a", "::1/128")}, "::1/128 is loopback"},
		{[]PoolConfig{poolOf("a", "::ffff:10.0.0.0/104")}, "write it as IPv4"},
		{[]PoolConfig{poolOf("a", "fe80::/64")}, "fe80::/10 is link-local"},
		{[]PoolConfig{poolOf("a", "ff02::/64")}, "ff00::/8 is multicast"},
	} {
		err := Validate(tt.pools)
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%v:\ngot  %v\nwant %s", tt.pools, err, tt.want)
		}
		if _, err2 := New(tt.pools); (err == nil) != (err2 == nil) {
			t.Errorf("%v: New: %v", tt.pools, err2)
		}
	}
}

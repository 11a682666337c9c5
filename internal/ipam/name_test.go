package ipam

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/berth-net/berth/internal/hold"
)

func TestNames(t *testing.T) {
	for _, s := range []string{"10.88.0.7", "fd00:88::7", "::"} {
		n := Name(netip.MustParseAddr(s))
		if n != (hold.Name{Space: "address", Name: s}) {
			t.Errorf("name of %s: %v", s, n)
		}
		if a, err := ParseName(n); err != nil || a.String() != s {
			t.Errorf("%v: %v, %v", n, a, err)
		}
	}
	for _, tt := range [][3]string{
		{"cidr", "10.88.0.0", `name "cidr:10.88.0.0": its space is not address`},
		{"address", "", `name "address:": not an address`},
		{"address", "default/10.88.0.7", `name "address:default/10.88.0.7": not an address`},
		{"address", "10.88.0.07", `name "address:10.88.0.07": not an address`},
		{"address", "FD00::7", `name "address:FD00::7": not the plain form of address fd00::7`},
		{"address", "::ffff:10.0.0.1", `name "address:::ffff:10.0.0.1": not the plain form of address 10.0.0.1`},
		{"address", "fe80::1%eth0", `name "address:fe80::1%eth0": not the plain form of address fe80::1`},
	} {
		_, err := ParseName(hold.Name{Space: tt[0], Name: tt[1]})
		want(t, fmt.Sprint(err), tt[2])
	}
}

func FuzzParseName(f *testing.F) {
	for _, s := range []string{"10.88.0.7", "fd00:88::7", "::ffff:1.2.3.4", "fe80::1%x", "default/10.0.0.1", "1.2.3.4 "} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		n := hold.Name{Space: Space, Name: s}
		a, err := ParseName(n)
		if err != nil {
			return
		}
		if Name(a) != n {
			t.Errorf("%q is read as %s, which is named %v", s, a, Name(a))
		}
	})
}

package mode_test

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/berth-net/berth/internal/cni/netconf"
	"github.com/berth-net/berth/internal/mode"
)

// A host port without an address is mapped for each family that the pod has. A host port with an
// address is mapped only for the address's family. Each mapping comes once.
func TestMappings(t *testing.T) {
	ip := netip.MustParseAddr
	four, six := ip("10.88.0.7"), ip("fd00::7")
	port := func(hostIP string) netconf.Port {
		p := netconf.Port{Protocol: "tcp", Host: 8080, Container: 80}
		if hostIP != "" {
			p.HostIP = ip(hostIP)
		}
		return p
	}
	const all4, all6 = "tcp 0.0.0.0:8080 to 10.88.0.7:80", "tcp [::]:8080 to [fd00::7]:80"
	for _, c := range []struct {
		ports []netconf.Port
		pod   []netip.Addr
		want  []string
	}{
		{nil, []netip.Addr{four, six}, nil},
		{[]netconf.Port{port("")}, []netip.Addr{four, six}, []string{all4, all6}},
		{[]netconf.Port{port("")}, []netip.Addr{four}, []string{all4}},
		{[]netconf.Port{port("")}, []netip.Addr{six}, []string{all6}},
		{[]netconf.Port{port("0.0.0.0")}, []netip.Addr{four, six}, []string{all4}},
		{[]netconf.Port{port("0.0.0.0")}, []netip.Addr{six}, nil},
		{[]netconf.Port{port("::"), port("")}, []netip.Addr{four, six}, []string{all4, all6}},
		{[]netconf.Port{port("2001:db8::1"), port("192.0.2.1")}, []netip.Addr{four, six},
			[]string{"tcp 192.0.2.1:8080 to 10.88.0.7:80", "tcp [2001:db8::1]:8080 to [fd00::7]:80"}},
	} {
		if got := mode.Mappings(c.ports, c.pod); fmt.Sprint(got) != fmt.Sprint(c.want) {
			t.Errorf("%v for %v: %v, want %v", c.ports, c.pod, got, c.want)
		}
	}
}

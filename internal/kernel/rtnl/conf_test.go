package rtnl_test

import (
	"strconv"
	"testing"

	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/kernel/rtnl"
)

// The kernel sends with a link the same values of sysctls as the link's files have.
func TestConfIsThatOfTheFiles(t *testing.T) {
	c := open(t, nil)
	l, _ := veth(t, c, "veth0")
	said := func(c rtnl.Conf) map[string]int32 {
		return map[string]int32{
			"ipv4/conf/veth0/arp_ignore": c.ARPIgnore, "ipv4/conf/veth0/accept_source_route": c.AcceptSourceRoute,
			"ipv4/conf/veth0/medium_id": c.MediumID, "ipv4/conf/veth0/proxy_arp_pvlan": c.ProxyARPPVLAN,
			"ipv4/conf/veth0/arp_accept": c.ARPAccept, "ipv6/conf/veth0/accept_untracked_na": c.AcceptUntrackedNA,
			"ipv4/conf/veth0/forwarding": c.Forwarding4, "ipv6/conf/veth0/forwarding": c.Forwarding6,
			"ipv6/conf/veth0/accept_ra": c.AcceptRA, "ipv6/conf/veth0/disable_ipv6": c.DisableIPv6,
		}
	}
	for set := range said(l.Conf) {
		for _, value := range []string{"1", "0"} {
			must(t, ns.SetSysctl(set, value))
			must(t, c.Do(rtnl.GetLink("veth0", &l)))
			if !l.Conf.IPv4 || !l.Conf.IPv6 {
				t.Fatalf("the kernel does not say them: %+v", l.Conf)
			}
			for name, have := range said(l.Conf) {
				if file, err := ns.Sysctl(name); err != nil || file != strconv.Itoa(int(have)) {
					t.Errorf("%s is %q, %v; the link says %d", name, file, err, have)
				}
			}
		}
	}
}

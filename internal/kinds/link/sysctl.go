package link

import (
	"errors"
	"io/fs"
	"strconv"

	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/kernel/rtnl"
)

// sysctl is one of the host's end: as it is, if the kernel has said so, and as it has
// to be.
type sysctl struct {
	family, name string // net/FAMILY/conf/LINK/NAME
	said         bool
	have, want   int32
}

// sysctls returns those by which the pod must not configure the host, or that make the
// link one of IPv6 or not. Of a link that is not on the way by IPv6 no other one of
// that family is of interest.
//
// The pod says nothing by router advertisements. It must not say by which way the node
// sends what it gets (source routes, segments): such a packet has another destination
// when the rules for destinations look at it. Nor may it fill the host's one table of
// neighbours: whom ARP answers is noted there, for itself (arp_ignore 8: nobody), or as
// a proxy for others elsewhere (medium_id -1: never) or behind the same link
// (proxy_arp_pvlan, which Linux reads of all links, too), and so is who announces itself,
// where new links are to take that up (arp_accept, which Linux reads of all links, too;
// accept_untracked_na). nftables does not see ARP. The pod knows its gateway without
// asking.
func (s *Spec) sysctls(c rtnl.Conf) []sysctl {
	all := []sysctl{
		{"ipv4", "arp_ignore", c.IPv4, c.ARPIgnore, 8},
		{"ipv4", "medium_id", c.IPv4, c.MediumID, -1},
		{"ipv4", "proxy_arp_pvlan", c.IPv4, c.ProxyARPPVLAN, 0},
		{"ipv4", "arp_accept", c.IPv4, c.ARPAccept, 0},
		{"ipv4", "accept_source_route", c.IPv4, c.AcceptSourceRoute, 0},
	}
	if !s.has(true) {
		return append(all, sysctl{"ipv6", "disable_ipv6", c.IPv6, c.DisableIPv6, 1})
	}
	return append(all,
		sysctl{"ipv6", "disable_ipv6", c.IPv6, c.DisableIPv6, 0},
		sysctl{"ipv6", "accept_ra", c.IPv6, c.AcceptRA, 0},
		sysctl{"ipv6", "seg6_enabled", c.IPv6, c.Seg6Enabled, 0},
		sysctl{"ipv6", "rpl_seg_enabled", c.IPv6, c.RPLSegEnabled, 0},
		sysctl{"ipv6", "accept_untracked_na", c.IPv6, c.AcceptUntrackedNA, 0})
}

// optional reports whether there are kernels that lack a sysctl, and need it not: those
// before Linux 5.7, or 5.19, and without IPv6.
func (x sysctl) optional() bool {
	return x.name == "rpl_seg_enabled" || x.name == "accept_untracked_na" || x.name == "disable_ipv6" && x.want == 1
}

// setSysctls sets those that differ, in the calling thread's network namespace. What
// the kernel has not said is asked first: to set disable_ipv6 takes the lock of all
// links.
func (s *Spec) setSysctls(c rtnl.Conf) error {
	for _, x := range s.sysctls(c) {
		path, want := x.family+"/conf/"+s.Name+"/"+x.name, strconv.Itoa(int(x.want))
		if !x.said {
			have, err := ns.Sysctl(path)
			if errors.Is(err, fs.ErrNotExist) && x.optional() {
				continue
			}
			if err != nil {
				return err
			}
			if have == want {
				continue
			}
		} else if x.have == x.want {
			continue
		}
		if err := ns.SetSysctl(path, want); err != nil {
			return err
		}
	}
	return nil
}

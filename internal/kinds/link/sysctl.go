package link

import (
	"errors"
	"io/fs"
	"strconv"

	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/kernel/rtnl"
)

// sysctl is a sysctl of the host's end, with its value and the value that it has to have.
type sysctl struct {
	family, name string // net/FAMILY/conf/LINK/NAME
	said         bool   // the kernel sent the value have with the link
	have, want   int32
}

// sysctls returns the sysctls of the host's end that Berth sets. They keep the pod from
// configuring the host, and switch IPv6 on the link on or off. If IPv6 is off, no other sysctl of
// IPv6 matters.
//
// The host ignores the pod's router advertisements (accept_ra).
//
// The pod must not choose the way by which the node sends its packets, by source routes or
// segments (accept_source_route, seg6_enabled, rpl_seg_enabled): such a packet has another
// destination by the time the rules for destinations look at it.
//
// The pod must not fill the host's one table of neighbours; nftables cannot prevent that,
// because it does not see ARP. The host makes an entry for every sender that it answers by ARP. So
// it answers nobody for its own addresses (arp_ignore 8), and is no proxy for addresses
// elsewhere (medium_id -1) or behind the same link (proxy_arp_pvlan; Linux also applies
// conf/all's). The pod knows its gateway's MAC without asking. The host also enters those
// that announce themselves, if it may make new entries for them (arp_accept, where Linux
// also applies conf/all's; accept_untracked_na).
//
// If forwards is set, the node forwards what the pod sends, and has to do that (forwarding).
// Links get it from conf/default, and from conf/all whenever that changes.
func (s *Spec) sysctls(c rtnl.Conf, forwards bool) []sysctl {
	all := []sysctl{
		{"ipv4", "arp_ignore", c.IPv4, c.ARPIgnore, 8},
		{"ipv4", "medium_id", c.IPv4, c.MediumID, -1},
		{"ipv4", "proxy_arp_pvlan", c.IPv4, c.ProxyARPPVLAN, 0},
		{"ipv4", "arp_accept", c.IPv4, c.ARPAccept, 0},
		{"ipv4", "accept_source_route", c.IPv4, c.AcceptSourceRoute, 0},
	}
	if forwards && s.has(false) {
		all = append(all, sysctl{"ipv4", "forwarding", c.IPv4, c.Forwarding4, 1})
	}
	if forwards && s.has(true) {
		all = append(all, sysctl{"ipv6", "forwarding", c.IPv6, c.Forwarding6, 1})
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

// optional reports whether a kernel may lack a sysctl because it also lacks what that
// controls: rpl_seg_enabled before Linux 5.7, accept_untracked_na before 5.19, and
// disable_ipv6 without IPv6.
func (x sysctl) optional() bool {
	return x.name == "rpl_seg_enabled" || x.name == "accept_untracked_na" || x.name == "disable_ipv6" && x.want == 1
}

// setSysctls sets the sysctls that differ, in the calling thread's network namespace. It
// reads those first that the kernel did not send with the link, because writing
// disable_ipv6 takes the lock of all links.
func (s *Spec) setSysctls(c rtnl.Conf, forwards bool) error {
	for _, x := range s.sysctls(c, forwards) {
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

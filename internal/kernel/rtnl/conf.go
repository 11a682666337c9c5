package rtnl

import (
	"encoding/binary"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Conf has a few of a link's sysctls, of net/ipv4/conf/LINK and net/ipv6/conf/LINK. The
// kernel sends them with the link, at no extra cost. A Monitor hears of these settings only when
// somebody switches forwarding off.
type Conf struct {
	IPv4, IPv6        bool  // the kernel sent the sysctls of this family
	Forwarding4       int32 // of IPv4: forwarding
	ARPIgnore         int32 // arp_ignore
	ARPAccept         int32 // arp_accept
	AcceptSourceRoute int32 // of IPv4: accept_source_route
	MediumID          int32 // medium_id
	ProxyARPPVLAN     int32 // proxy_arp_pvlan
	Forwarding6       int32 // of IPv6: forwarding
	AcceptRA          int32 // accept_ra
	DisableIPv6       int32 // disable_ipv6
	Seg6Enabled       int32 // seg6_enabled
	RPLSegEnabled     int32 // rpl_seg_enabled; 0 before Linux 5.7
	AcceptUntrackedNA int32 // accept_untracked_na; 0 before Linux 5.19
}

// Places in the arrays IFLA_INET_CONF and IFLA_INET6_CONF. For IPv4 the places are the numbers in
// include/uapi/linux/ip.h less 1, and for IPv6 the numbers in include/uapi/linux/ipv6.h. Kernels only
// ever append to both arrays.
const (
	inetConf, inet6Conf = 1, 2 // IFLA_INET_CONF, IFLA_INET6_CONF

	confForwarding4       = 0 // 1 - 1
	confAcceptSourceRoute = 9 - 1
	confMediumID          = 14 - 1
	confARPIgnore         = 19 - 1
	confARPAccept         = 21 - 1
	confProxyARPPVLAN     = 25 - 1
	confForwarding6       = 0
	confAcceptRA          = 3
	confDisableIPv6       = 26
	confSeg6Enabled       = 44
	confRPLSegEnabled     = 51
	confAcceptUntrackedNA = 57
)

// parseConf reads a link's IFLA_AF_SPEC, which has an attribute for each family, with
// attributes of its own. In what a bridge tells of its ports IFLA_AF_SPEC means something
// else.
func parseConf(b []byte) (c Conf) {
	if conf := within(within(b, unix.AF_INET), inetConf); len(conf) > 4*confProxyARPPVLAN {
		c.IPv4 = true
		c.ARPIgnore, c.AcceptSourceRoute = int32At(conf, confARPIgnore), int32At(conf, confAcceptSourceRoute)
		c.Forwarding4, c.ARPAccept = int32At(conf, confForwarding4), int32At(conf, confARPAccept)
		c.MediumID, c.ProxyARPPVLAN = int32At(conf, confMediumID), int32At(conf, confProxyARPPVLAN)
	}
	if conf := within(within(b, unix.AF_INET6), inet6Conf); len(conf) > 4*confDisableIPv6 {
		c.IPv6 = true
		c.Forwarding6 = int32At(conf, confForwarding6)
		c.AcceptRA, c.DisableIPv6 = int32At(conf, confAcceptRA), int32At(conf, confDisableIPv6)
		c.Seg6Enabled, c.RPLSegEnabled = int32At(conf, confSeg6Enabled), int32At(conf, confRPLSegEnabled)
		c.AcceptUntrackedNA = int32At(conf, confAcceptUntrackedNA)
	}
	return c
}

// within returns the value of the attribute of a type in b; nil if there is none.
func within(b []byte, typ uint16) []byte {
	for len(b) >= unix.SizeofRtAttr {
		size := int(binary.NativeEndian.Uint16(b))
		if size < unix.SizeofRtAttr || size > len(b) {
			return nil
		}
		if binary.NativeEndian.Uint16(b[2:])&nl.NLA_TYPE_MASK == typ {
			return b[unix.SizeofRtAttr:size]
		}
		b = b[min((size+3)&^3, len(b)):]
	}
	return nil
}

// int32At returns the i-th number of an array; 0 if the array is too short.
func int32At(b []byte, i int) int32 {
	if len(b) < 4*i+4 {
		return 0
	}
	return int32(binary.NativeEndian.Uint32(b[4*i:]))
}

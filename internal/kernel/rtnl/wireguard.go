package rtnl

import (
	"fmt"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// AddWireGuard makes a WireGuard device without keys and peers, which is down. If the kernel has no WireGuard, the error is
// kernel.ErrUnsupported; if a link has the name, kernel.ErrExists.
//
//	ip link add NAME mtu N type wireguard
func AddWireGuard(name string, mtu int) Request {
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(unix.IFLA_INFO_KIND, nl.NonZeroTerminated("wireguard"))
	parts := []nl.NetlinkRequestData{
		nl.NewIfInfomsg(unix.AF_UNSPEC),
		nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(name)),
		nl.NewRtAttr(unix.IFLA_MTU, nl.Uint32Attr(uint32(mtu))),
		info,
	}
	return Request{
		text:  fmt.Sprintf("ip link add %s mtu %d type wireguard", name, mtu),
		typ:   unix.RTM_NEWLINK,
		flags: unix.NLM_F_CREATE | unix.NLM_F_EXCL,
		body:  body(parts...),
	}
}

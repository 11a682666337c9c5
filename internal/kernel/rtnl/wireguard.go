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

// WireGuards lists the WireGuard devices for which keep answers true, and the TUN devices, which programs in user space have for
// WireGuard. The kernel leaves out all other links, which cost next to nothing then; a kernel that knows one of the two kinds not, such
// as one that has not loaded the module, leaves out none.
//
//	ip link show type wireguard; ip link show type tun
func (c *Conn) WireGuards(keep func(Link) (bool, error)) (all []Link, err error) {
	seen := map[int]bool{}
	once := func(l Link) (bool, error) {
		ok, err := keep(l)
		ok = ok && !seen[l.Index]
		seen[l.Index] = seen[l.Index] || ok
		return ok, err
	}
	for _, kind := range []string{"wireguard", "tun"} {
		info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
		info.AddRtAttr(unix.IFLA_INFO_KIND, nl.NonZeroTerminated(kind))
		some, err := c.links("ip link show type "+kind, once, info)
		if err != nil {
			return nil, err
		}
		all = append(all, some...)
	}
	return all, nil
}

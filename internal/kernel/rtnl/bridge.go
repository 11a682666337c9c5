package rtnl

import (
	"encoding/binary"
	"fmt"
	"net"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Bridge is a bridge as AddBridge makes it, and as GetBridge reads it.
type Bridge struct {
	Name  string
	Index int    // only read
	Alias string // only read: the kernel ignores an alias when it makes a link
	MAC   string // "": a random address, and later that of the port with the lowest one (AddBridge)
	MTU   int    // bytes; 0: the kernel's default, and later the lowest MTU of the ports (AddBridge)
	Group uint32
	Up    bool // only read
	// Promisc says that somebody has set the bridge promiscuous (IFF_PROMISC). Only read: see the setting Promisc.
	Promisc bool
	// VLANFiltering says that a port passes only frames of its VLANs (SetPortVLAN).
	VLANFiltering bool
	// PVID is the VLAN of a new port's frames without a tag. It counts only with VLANFiltering; 0 then means none, so
	// that a new port passes nothing before SetPortVLAN.
	PVID uint16
}

// AddBridge makes a bridge, which is down. If a link has the name the error is kernel.ErrExists. If the kernel
// has no bridges, or a bridge is to filter VLANs and the kernel cannot (CONFIG_BRIDGE_VLAN_FILTERING), it is
// kernel.ErrUnsupported.
//
//	ip link add NAME address MAC mtu N group G type bridge [vlan_filtering 1 vlan_default_pvid PVID]
func AddBridge(b Bridge) Request {
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(unix.IFLA_INFO_KIND, nl.NonZeroTerminated("bridge"))
	text := "ip link add " + b.Name + " type bridge"
	if b.VLANFiltering { // a kernel that cannot filter VLANs refuses even a 0
		data := info.AddRtAttr(unix.IFLA_INFO_DATA, nil)
		data.AddRtAttr(nl.IFLA_BR_VLAN_FILTERING, flag(true))
		data.AddRtAttr(nl.IFLA_BR_VLAN_DEFAULT_PVID, nl.Uint16Attr(b.PVID))
		text += fmt.Sprint(" vlan_filtering 1 vlan_default_pvid ", b.PVID)
	}
	parts := []nl.NetlinkRequestData{
		nl.NewIfInfomsg(unix.AF_UNSPEC),
		nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(b.Name)),
		nl.NewRtAttr(unix.IFLA_GROUP, nl.Uint32Attr(b.Group)),
	}
	if mac, err := net.ParseMAC(b.MAC); err == nil {
		parts = append(parts, nl.NewRtAttr(unix.IFLA_ADDRESS, mac))
	}
	if b.MTU != 0 {
		parts = append(parts, nl.NewRtAttr(unix.IFLA_MTU, nl.Uint32Attr(uint32(b.MTU))))
	}
	return Request{
		text:  text,
		typ:   unix.RTM_NEWLINK,
		flags: unix.NLM_F_CREATE | unix.NLM_F_EXCL,
		body:  body(append(parts, info)...),
	}
}

func flag(on bool) []byte {
	if on {
		return []byte{1}
	}
	return []byte{0}
}

// GetBridge reads a bridge, found by its name. If there is no such link, the error is kernel.ErrNotFound; if
// the link is no bridge, the answer has the Index 0.
//
//	ip -d link show NAME
func GetBridge(name string, b *Bridge) Request {
	r := GetLink(name, new(Link))
	r.answer = func(raw []byte) (err error) { *b, err = parseBridge(raw); return err }
	return r
}

// parseBridge reads an RTM_NEWLINK. If the link is no bridge, it returns a zero Bridge.
func parseBridge(b []byte) (Bridge, error) {
	l, err := parseLink(b)
	if err != nil {
		return Bridge{}, err
	}
	info := within(b[unix.SizeofIfInfomsg:], unix.IFLA_LINKINFO)
	if unix.ByteSliceToString(within(info, unix.IFLA_INFO_KIND)) != "bridge" {
		return Bridge{}, nil
	}
	data := within(info, unix.IFLA_INFO_DATA)
	return Bridge{
		Name: l.Name, Index: l.Index, Alias: l.Alias, MAC: l.MAC, MTU: l.MTU, Group: l.Group, Up: l.Up,
		Promisc:       nl.DeserializeIfInfomsg(b).Flags&unix.IFF_PROMISC != 0,
		VLANFiltering: isSet(within(data, nl.IFLA_BR_VLAN_FILTERING)),
		PVID:          uint16Of(within(data, nl.IFLA_BR_VLAN_DEFAULT_PVID)),
	}, nil
}

// isSet reads an attribute of one byte, which is a flag.
func isSet(value []byte) bool { return len(value) == 1 && value[0] != 0 }

// uint16Of reads a 2-byte attribute. It returns 0 for a shorter attribute.
func uint16Of(value []byte) uint16 {
	if len(value) < 2 {
		return 0
	}
	return binary.NativeEndian.Uint16(value)
}

// Bridges lists the indices of the node's bridges. The kernel walks all links of the node, and sends the bridges alone.
//
//	ip -d link show type bridge
func (c *Conn) Bridges() ([]int, error) {
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(unix.IFLA_INFO_KIND, nl.NonZeroTerminated("bridge"))
	r := Request{
		text: "ip -d link show type bridge",
		typ:  unix.RTM_GETLINK,
		body: body(nl.NewIfInfomsg(unix.AF_UNSPEC), nl.NewRtAttr(unix.IFLA_EXT_MASK, nl.Uint32Attr(skipStatistics)), info),
	}
	return dump(c, r, func(b []byte) (int, bool, error) {
		bridge, err := parseBridge(b)
		return bridge.Index, bridge.Index != 0, err // a kernel that has not loaded the module lists all links
	})
}

package rtnl

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// VXLAN is a device that carries Ethernet frames in UDP (RFC 7348) to the remotes that SetRemote names. It learns
// nothing from the frames that come, and floods nothing.
type VXLAN struct {
	Name  string
	Index int
	Alias string
	MAC   string
	MTU   int // bytes
	Up    bool
	VNI   uint32     // 24 bits
	Port  uint16     // UDP, of both sides
	Local netip.Addr // the node's address, from which and to which the UDP packets go
}

// AddVXLAN makes a VXLAN device, with its name, MAC, MTU, VNI, port and local address. If a link has the name, or if another
// device without remote has the VNI at the port, the error is kernel.ErrExists.
//
//	ip link add NAME address MAC mtu N type vxlan id VNI dstport PORT local ADDR nolearning
func AddVXLAN(v VXLAN) Request {
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(unix.IFLA_INFO_KIND, nl.NonZeroTerminated("vxlan"))
	data := info.AddRtAttr(unix.IFLA_INFO_DATA, nil)
	data.AddRtAttr(nl.IFLA_VXLAN_ID, nl.Uint32Attr(v.VNI))
	data.AddRtAttr(nl.IFLA_VXLAN_PORT, binary.BigEndian.AppendUint16(nil, v.Port))
	data.AddRtAttr(nl.IFLA_VXLAN_LEARNING, nl.Uint8Attr(0))
	local := nl.IFLA_VXLAN_LOCAL
	if v.Local.Is6() {
		local = nl.IFLA_VXLAN_LOCAL6
	}
	data.AddRtAttr(local, v.Local.AsSlice())
	mac, _ := net.ParseMAC(v.MAC)
	parts := []nl.NetlinkRequestData{
		nl.NewIfInfomsg(unix.AF_UNSPEC),
		nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(v.Name)),
		nl.NewRtAttr(unix.IFLA_MTU, nl.Uint32Attr(uint32(v.MTU))),
		nl.NewRtAttr(unix.IFLA_ADDRESS, mac),
		info,
	}
	return Request{
		text:  fmt.Sprintf("ip link add %s address %s mtu %d type vxlan id %d dstport %d local %s nolearning", v.Name, v.MAC, v.MTU, v.VNI, v.Port, v.Local),
		typ:   unix.RTM_NEWLINK,
		flags: unix.NLM_F_CREATE | unix.NLM_F_EXCL,
		body:  body(parts...),
	}
}

// VXLANs lists the VXLAN devices that AddVXLAN may have made: those that learn nothing and have a local address.
//
//	ip -d link show type vxlan
func (c *Conn) VXLANs() ([]VXLAN, error) {
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(unix.IFLA_INFO_KIND, nl.NonZeroTerminated("vxlan"))
	r := Request{
		text: "ip -d link show type vxlan",
		typ:  unix.RTM_GETLINK,
		body: body(nl.NewIfInfomsg(unix.AF_UNSPEC), nl.NewRtAttr(unix.IFLA_EXT_MASK, nl.Uint32Attr(skipStatistics)), info),
	}
	return dump(c, r, parseVXLAN)
}

// parseVXLAN reads an RTM_NEWLINK, and reports whether AddVXLAN may have made the link.
func parseVXLAN(b []byte) (v VXLAN, ours bool, err error) {
	l, err := parseLink(b)
	if err != nil {
		return v, false, err
	}
	v = VXLAN{Name: l.Name, Index: l.Index, Alias: l.Alias, MAC: l.MAC, MTU: l.MTU, Up: l.Up}
	kind, learns := "", true
	data := func(typ uint16, value []byte) {
		switch int(typ) {
		case nl.IFLA_VXLAN_ID:
			v.VNI = uint32Of(value)
		case nl.IFLA_VXLAN_PORT:
			if len(value) == 2 {
				v.Port = binary.BigEndian.Uint16(value)
			}
		case nl.IFLA_VXLAN_LOCAL, nl.IFLA_VXLAN_LOCAL6:
			v.Local, _ = netip.AddrFromSlice(value)
		case nl.IFLA_VXLAN_LEARNING:
			learns = len(value) == 1 && value[0] != 0
		}
	}
	info := func(typ uint16, value []byte) {
		switch typ {
		case unix.IFLA_INFO_KIND:
			kind = unix.ByteSliceToString(value)
		case unix.IFLA_INFO_DATA:
			_ = attributes(value, 0, data)
		}
	}
	err = attributes(b, unix.SizeofIfInfomsg, func(typ uint16, value []byte) {
		if typ == unix.IFLA_LINKINFO {
			_ = attributes(value, 0, info)
		}
	})
	return v, kind == "vxlan" && !learns && v.Local.IsValid(), err
}

// Remote is where a VXLAN device sends frames for a MAC.
type Remote struct {
	MAC   string
	Addr  netip.Addr // of the other node, of the family of the device's local address
	Index int        // of the device
}

// SetRemote says where a VXLAN device sends frames for a MAC. It replaces what the device had for the MAC.
//
//	bridge fdb replace MAC dev DEV dst ADDR self permanent
func SetRemote(r Remote) Request {
	return Request{
		text:  fmt.Sprintf("bridge fdb replace %s dev %d dst %s self permanent", r.MAC, r.Index, r.Addr),
		typ:   unix.RTM_NEWNEIGH,
		flags: unix.NLM_F_CREATE | unix.NLM_F_REPLACE,
		body:  r.body(),
	}
}

// DelRemote says that a VXLAN device sends frames for a MAC nowhere. If it sends them to another address than r's, nothing
// changes; if it sends them nowhere, the error is kernel.ErrNotFound.
//
//	bridge fdb del MAC dev DEV dst ADDR self
func DelRemote(r Remote) Request {
	return Request{
		text: fmt.Sprintf("bridge fdb del %s dev %d dst %s self", r.MAC, r.Index, r.Addr),
		typ:  unix.RTM_DELNEIGH,
		body: r.body(),
	}
}

func (r Remote) body() []byte {
	mac, _ := net.ParseMAC(r.MAC)
	msg := netlink.Ndmsg{Family: unix.AF_BRIDGE, Index: uint32(r.Index), State: unix.NUD_PERMANENT | unix.NUD_NOARP, Flags: unix.NTF_SELF}
	return body(&msg, nl.NewRtAttr(unix.NDA_LLADDR, mac), nl.NewRtAttr(unix.NDA_DST, r.Addr.AsSlice()))
}

// Remotes lists where a VXLAN device sends frames.
//
//	bridge fdb show dev DEV
func (c *Conn) Remotes(index int) ([]Remote, error) {
	r := Request{
		text: fmt.Sprint("bridge fdb show dev ", index), typ: unix.RTM_GETNEIGH,
		body: body(&netlink.Ndmsg{Family: unix.AF_BRIDGE, Index: uint32(index)}),
	}
	return dump(c, r, func(b []byte) (r Remote, to bool, err error) {
		n, _, err := parseNeighbour(b)
		return Remote{n.MAC, n.Addr, n.Index}, n.Index == index && n.Addr.IsValid(), err
	})
}

// DelNeighbour deletes a neighbour of a link. If there is no such neighbour the error is kernel.ErrNotFound.
//
//	ip neigh del ADDR dev DEV
func DelNeighbour(addr netip.Addr, index int) Request {
	msg := netlink.Ndmsg{Family: uint8(family(addr)), Index: uint32(index)}
	return Request{
		text: fmt.Sprintf("ip neigh del %s dev %d", addr, index),
		typ:  unix.RTM_DELNEIGH,
		body: body(&msg, nl.NewRtAttr(unix.NDA_DST, addr.AsSlice())),
	}
}

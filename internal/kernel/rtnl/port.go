package rtnl

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Port says how a bridge treats one of its ports.
type Port struct {
	Hairpin  bool // frames may leave by the port by which they came
	Isolated bool // no frames from other isolated ports leave by the port, nor the other way round
	Learning bool // the bridge learns MACs from the port's frames; the kernel's default is true
	Locked   bool // frames come by the port only from MACs for which the bridge has an entry with this port (SetPortMAC). Before Linux 5.18 it stays false
	Guarded  bool // a BPDU that comes by the port disables the port, if the bridge speaks STP
}

// SetPort changes how a bridge treats the port with an index. If the link is no port of a bridge, the error
// is kernel.ErrUnsupported or, before Linux 6.13, kernel.ErrInvalid.
//
//	bridge link set dev DEV hairpin on|off isolated on|off learning on|off locked on|off guard on|off
func SetPort(index int, p Port) Request {
	msg := nl.NewIfInfomsg(unix.AF_BRIDGE)
	msg.Index = int32(index)
	info := nl.NewRtAttr(unix.IFLA_PROTINFO|unix.NLA_F_NESTED, nil)
	info.AddRtAttr(nl.IFLA_BRPORT_MODE, flag(p.Hairpin))
	info.AddRtAttr(nl.IFLA_BRPORT_ISOLATED, flag(p.Isolated))
	info.AddRtAttr(nl.IFLA_BRPORT_LEARNING, flag(p.Learning))
	info.AddRtAttr(nl.IFLA_BRPORT_LOCKED, flag(p.Locked))
	info.AddRtAttr(nl.IFLA_BRPORT_GUARD, flag(p.Guarded))
	return Request{
		text: fmt.Sprintf("bridge link set dev %d hairpin %d isolated %d learning %d locked %d guard %d",
			index, flag(p.Hairpin)[0], flag(p.Isolated)[0], flag(p.Learning)[0], flag(p.Locked)[0], flag(p.Guarded)[0]),
		typ:  unix.RTM_SETLINK,
		body: body(msg, info),
	}
}

// PortOf is a link that is a port of a bridge.
type PortOf struct {
	Link // Master is the bridge's index
	Port
}

// GetPort reads a port of a bridge, found by its index, in constant time. If there is no such link, the error
// is kernel.ErrNotFound; if the link is no port of a bridge, the answer has the Master 0.
//
//	ip -d link show DEV
func GetPort(index int, p *PortOf) Request {
	r := GetLinkAt(index, new(Link))
	r.answer = func(b []byte) (err error) { *p, err = parsePort(b); return err }
	return r
}

// Ports lists the ports of the bridge with an index. The kernel walks all links of the node, and sends the
// ports alone.
//
//	ip -d link show master DEV
func (c *Conn) Ports(bridge int) ([]PortOf, error) {
	r := Request{
		text: fmt.Sprint("ip -d link show master ", bridge),
		typ:  unix.RTM_GETLINK,
		body: body(nl.NewIfInfomsg(unix.AF_UNSPEC),
			nl.NewRtAttr(unix.IFLA_EXT_MASK, nl.Uint32Attr(skipStatistics)),
			nl.NewRtAttr(unix.IFLA_MASTER, nl.Uint32Attr(uint32(bridge)))),
	}
	return dump(c, r, func(b []byte) (PortOf, bool, error) {
		p, err := parsePort(b)
		return p, err == nil && p.Master == bridge, err
	})
}

// parsePort reads an RTM_NEWLINK. If the link is no port of a bridge, the answer has the Master 0.
func parsePort(b []byte) (p PortOf, err error) {
	if p.Link, err = parseLink(b); err != nil {
		return p, err
	}
	info := within(b[unix.SizeofIfInfomsg:], unix.IFLA_LINKINFO)
	if unix.ByteSliceToString(within(info, unix.IFLA_INFO_SLAVE_KIND)) != "bridge" {
		p.Master = 0
		return p, nil
	}
	data := within(info, unix.IFLA_INFO_SLAVE_DATA)
	p.Port = Port{
		Hairpin:  isSet(within(data, nl.IFLA_BRPORT_MODE)),
		Isolated: isSet(within(data, nl.IFLA_BRPORT_ISOLATED)),
		Learning: isSet(within(data, nl.IFLA_BRPORT_LEARNING)),
		Locked:   isSet(within(data, nl.IFLA_BRPORT_LOCKED)),
		Guarded:  isSet(within(data, nl.IFLA_BRPORT_GUARD)),
	}
	return p, nil
}

// VLAN is a VLAN of a bridge's port, or of the bridge itself.
type VLAN struct {
	ID       uint16 // 1 to 4094
	PVID     bool   // frames that come without a tag are of this VLAN; at most one VLAN of a port is
	Untagged bool   // frames of this VLAN leave without a tag
}

// String returns the VLAN as bridge's arguments.
func (v VLAN) String() string {
	text := fmt.Sprint("vid ", v.ID)
	if v.PVID {
		text += " pvid"
	}
	if v.Untagged {
		text += " untagged"
	}
	return text
}

// SetPortVLAN gives the port with an index a VLAN. What the port had for the VLAN, and the port's former PVID,
// give way. It counts while the bridge filters VLANs. If the link is no port, or the kernel cannot filter VLANs,
// the error is kernel.ErrUnsupported; for an ID that is none, kernel.ErrInvalid.
//
//	bridge vlan add dev DEV vid ID [pvid] [untagged]
func SetPortVLAN(index int, v VLAN) Request {
	return Request{
		text: fmt.Sprintf("bridge vlan add dev %d %s", index, v),
		typ:  unix.RTM_SETLINK,
		body: v.body(index),
	}
}

// DelPortVLAN takes a VLAN from the port with an index, and goes by the VLAN's ID alone. A kernel that cannot
// filter VLANs answers as if it had done so.
//
//	bridge vlan del dev DEV vid ID
func DelPortVLAN(index int, v VLAN) Request {
	return Request{
		text: fmt.Sprintf("bridge vlan del dev %d vid %d", index, v.ID),
		typ:  unix.RTM_DELLINK,
		body: VLAN{ID: v.ID}.body(index),
	}
}

func (v VLAN) body(index int) []byte {
	msg := nl.NewIfInfomsg(unix.AF_BRIDGE)
	msg.Index = int32(index)
	var flags uint16
	if v.PVID {
		flags |= nl.BRIDGE_VLAN_INFO_PVID
	}
	if v.Untagged {
		flags |= nl.BRIDGE_VLAN_INFO_UNTAGGED
	}
	spec := nl.NewRtAttr(unix.IFLA_AF_SPEC, nil)
	spec.AddRtAttr(nl.IFLA_BRIDGE_VLAN_INFO, append(nl.Uint16Attr(flags), nl.Uint16Attr(v.ID)...))
	return body(msg, spec)
}

// Constants of include/uapi/linux/if_bridge.h that x/sys/unix lacks.
const (
	sizeofBrVLANMsg   = 8
	bridgeVLANDBEntry = 1 // of a message about VLANs: one VLAN, or a range of VLANs that are alike
	entryInfo         = 1 // of an entry: struct bridge_vlan_info
	entryRange        = 2 // of an entry: the last ID of a range
	lastVLAN          = 4094
)

// PortVLANs lists the VLANs of the port with an index, which count while the bridge filters VLANs. If the kernel cannot filter VLANs, or is older
// than Linux 5.6, the error is kernel.ErrUnsupported; if the link is no port, kernel.ErrInvalid.
//
//	bridge vlan show dev DEV
func (c *Conn) PortVLANs(index int) ([]VLAN, error) {
	msg := make([]byte, sizeofBrVLANMsg) // struct br_vlan_msg
	msg[0] = unix.AF_BRIDGE
	binary.NativeEndian.PutUint32(msg[4:], uint32(index))
	r := Request{text: fmt.Sprint("bridge vlan show dev ", index), typ: unix.RTM_GETVLAN, body: msg}
	parts, err := dump(c, r, func(b []byte) ([]VLAN, bool, error) {
		all, err := parseVLANs(b)
		return all, err == nil, err
	})
	return slices.Concat(parts...), err
}

// parseVLANs reads an RTM_NEWVLAN.
func parseVLANs(b []byte) (all []VLAN, err error) {
	err = attributes(b, sizeofBrVLANMsg, func(typ uint16, entry []byte) {
		info := within(entry, entryInfo)
		if typ != bridgeVLANDBEntry || len(info) < 4 {
			return
		}
		flags, first := binary.NativeEndian.Uint16(info), binary.NativeEndian.Uint16(info[2:])
		for id := first; id <= min(max(first, uint16Of(within(entry, entryRange))), lastVLAN); id++ {
			all = append(all, VLAN{ID: id, PVID: flags&nl.BRIDGE_VLAN_INFO_PVID != 0, Untagged: flags&nl.BRIDGE_VLAN_INFO_UNTAGGED != 0})
		}
	})
	return all, err
}

package rtnl

import (
	"encoding/binary"
	"fmt"
	"net"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Constants of include/uapi/linux/neighbour.h that x/sys/unix lacks.
const (
	ntfSticky = 0x40
	ndaMaster = 9
)

// PortMAC is what a bridge knows of a MAC: the port behind which it is.
type PortMAC struct {
	MAC    string
	VLAN   uint16 // of whose frames alone it is; 0: it is what counts while the bridge does not filter VLANs
	Index  int    // of the port, or of the bridge itself if the MAC is the bridge's
	Static bool   // somebody has set it: it does not age
	Sticky bool   // no frame from elsewhere moves it to another port
}

// SetPortMAC tells a bridge that a MAC is behind the port with an index, for good: frames with that MAC that come by other ports do not change
// it. The entry goes with the port. There is one for each VLAN that the port has now, and one outside of VLANs. If anew is set, SetPortMAC replaces
// what the bridge knew of the MAC in these; else, if the bridge knows anything of it in one of them, the error is kernel.ErrExists: the kernel stops
// there, and what it has added outside of VLANs and in other ones stays. If the link is no port of a bridge, the error is kernel.ErrUnsupported or kernel.ErrInvalid.
//
//	bridge fdb add|replace MAC dev DEV master static sticky
func SetPortMAC(index int, mac net.HardwareAddr, anew bool) Request {
	flags, verb := uint16(unix.NLM_F_CREATE|unix.NLM_F_EXCL), "add"
	if anew {
		flags, verb = unix.NLM_F_CREATE|unix.NLM_F_REPLACE, "replace"
	}
	msg := netlink.Ndmsg{Family: unix.AF_BRIDGE, Index: uint32(index), State: unix.NUD_NOARP, Flags: unix.NTF_MASTER | ntfSticky}
	return Request{
		text:  fmt.Sprintf("bridge fdb %s %s dev %d master static sticky", verb, mac, index),
		typ:   unix.RTM_NEWNEIGH,
		flags: flags,
		body:  body(&msg, nl.NewRtAttr(unix.NDA_LLADDR, mac)),
	}
}

// GetPortMAC reads what a bridge, found by its index, knows of a MAC in a VLAN, or, if vlan is 0, outside of VLANs. If it knows nothing,
// the error is kernel.ErrNotFound. Linux can tell since 5.0.
//
//	bridge fdb get MAC br DEV [vlan VLAN]
func GetPortMAC(bridge int, mac net.HardwareAddr, vlan uint16, p *PortMAC) Request {
	msg := netlink.Ndmsg{Family: unix.AF_BRIDGE, Flags: unix.NTF_MASTER}
	text := fmt.Sprintf("bridge fdb get %s br %d", mac, bridge)
	parts := []nl.NetlinkRequestData{&msg, nl.NewRtAttr(ndaMaster, nl.Uint32Attr(uint32(bridge))), nl.NewRtAttr(unix.NDA_LLADDR, mac)}
	if vlan != 0 { // the kernel refuses even a 0
		text += fmt.Sprint(" vlan ", vlan)
		parts = append(parts, nl.NewRtAttr(unix.NDA_VLAN, nl.Uint16Attr(vlan)))
	}
	return Request{
		text:   text,
		typ:    unix.RTM_GETNEIGH,
		body:   body(parts...),
		answer: func(b []byte) (err error) { *p, err = parsePortMAC(b); return err },
	}
}

// PortMACs lists the MACs that a bridge knows behind the port with an index, once for each VLAN in which it does.
//
//	bridge fdb show dev DEV
func (c *Conn) PortMACs(index int) ([]PortMAC, error) {
	r := Request{
		text: fmt.Sprint("bridge fdb show dev ", index), typ: unix.RTM_GETNEIGH,
		body: body(&netlink.Ndmsg{Family: unix.AF_BRIDGE, Index: uint32(index)}),
	}
	return dump(c, r, func(b []byte) (PortMAC, bool, error) {
		p, err := parsePortMAC(b)
		return p, err == nil && p.Index == index, err
	})
}

// parsePortMAC reads an RTM_NEWNEIGH of family AF_BRIDGE.
func parsePortMAC(b []byte) (p PortMAC, err error) {
	n, permanent, err := parseNeighbour(b)
	if err != nil {
		return p, err
	}
	return PortMAC{
		MAC: n.MAC, Index: n.Index,
		VLAN:   uint16Of(within(b[unix.SizeofNdMsg:], unix.NDA_VLAN)),
		Static: permanent || binary.NativeEndian.Uint16(b[8:])&unix.NUD_NOARP != 0,
		Sticky: b[10]&ntfSticky != 0,
	}, nil
}

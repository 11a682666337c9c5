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

// Neighbour is a permanent neighbour: an address whose MAC the kernel never has to ask for.
type Neighbour struct {
	Addr  netip.Addr
	MAC   string
	Index int // of the link that leads to the neighbour
}

// SetNeighbour makes a permanent neighbour. It replaces any neighbour with this address on
// this link.
//
//	ip neigh replace ADDR lladdr MAC dev DEV nud permanent
func SetNeighbour(addr netip.Addr, mac net.HardwareAddr, index int) Request {
	msg := netlink.Ndmsg{Family: uint8(family(addr)), Index: uint32(index), State: unix.NUD_PERMANENT}
	return Request{
		text:  fmt.Sprintf("ip neigh replace %s lladdr %s dev %d nud permanent", addr, mac, index),
		typ:   unix.RTM_NEWNEIGH,
		flags: unix.NLM_F_CREATE | unix.NLM_F_REPLACE,
		body:  body(&msg, nl.NewRtAttr(unix.NDA_DST, addr.AsSlice()), nl.NewRtAttr(unix.NDA_LLADDR, mac)),
	}
}

// GetNeighbour reads a permanent neighbour into n. If the neighbour is not permanent, n
// stays as it is. If there is no neighbour the error is kernel.ErrNotFound.
//
//	ip neigh get ADDR dev DEV
func GetNeighbour(addr netip.Addr, index int, n *Neighbour) Request {
	msg := netlink.Ndmsg{Family: uint8(family(addr)), Index: uint32(index)}
	return Request{
		text: fmt.Sprintf("ip neigh get %s dev %d", addr, index),
		typ:  unix.RTM_GETNEIGH,
		body: body(&msg, nl.NewRtAttr(unix.NDA_DST, addr.AsSlice())),
		answer: func(b []byte) error {
			seen, permanent, err := parseNeighbour(b)
			if permanent {
				*n = seen
			}
			return err
		},
	}
}

// Neighbours lists the permanent neighbours of all links, of both families.
//
//	ip neigh show nud permanent
func (c *Conn) Neighbours() ([]Neighbour, error) {
	r := Request{text: "ip neigh show nud permanent", typ: unix.RTM_GETNEIGH, body: body(&netlink.Ndmsg{})}
	return dump(c, r, parseNeighbour)
}

// parseNeighbour reads an RTM_NEWNEIGH, and reports whether the neighbour is permanent.
func parseNeighbour(b []byte) (Neighbour, bool, error) {
	var n Neighbour
	err := attributes(b, unix.SizeofNdMsg, func(typ uint16, value []byte) {
		switch typ {
		case unix.NDA_DST:
			n.Addr, _ = netip.AddrFromSlice(value)
		case unix.NDA_LLADDR:
			n.MAC = net.HardwareAddr(value).String()
		}
	})
	if err != nil {
		return Neighbour{}, false, err
	}
	n.Index = int(binary.NativeEndian.Uint32(b[4:]))
	return n, binary.NativeEndian.Uint16(b[8:])&unix.NUD_PERMANENT != 0, nil
}

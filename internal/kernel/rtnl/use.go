package rtnl

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/kernel"
	"github.com/berth-net/berth/internal/stamp"
)

// Use says that something on this node uses addresses.
type Use struct {
	Sort   UseSort
	Prefix netip.Prefix // of an address: the address, with the length of its network's prefix
	Index  int          // of the link; 0: none, or several
	Table  uint32       // of a route or a gateway
	Via    netip.Addr   // a route's gateway, if the route has one
	Agent  string       // of an agent's pool route: the first 4 characters of the instance's id
}

// UseSort says what a Use is.
type UseSort string

// Sorts of uses.
const (
	UseAddress UseSort = "address" // of a link
	UseRoute   UseSort = "route"   // neither a default route, nor a route to the node's own addresses
	UseGateway UseSort = "gateway" // of any route
)

// Uses lists who uses addresses: the addresses of links, the routes of all tables but local,
// and their gateways. Among routes with Berth's protocol number, it lists the routes of every
// agent's pools, and leaves out routes to pods: a pool's route says enough. The kernel walks all
// addresses and routes for the list.
//
//	ip addr show; ip route show table all
func (c *Conn) Uses() ([]Use, error) {
	var all []Use
	for _, family := range families {
		addresses, err := dump(c, Request{text: "ip addr show", typ: unix.RTM_GETADDR, body: body(nl.NewIfAddrmsg(int(family)))},
			func(b []byte) (Use, bool, error) {
				a, err := parseAddress(b)
				return Use{Sort: UseAddress, Prefix: a.Prefix, Index: a.Index}, err == nil, err
			})
		if err != nil && !errors.Is(err, kernel.ErrInterrupted) { // if addresses come and go, the last list is good enough
			return nil, err
		}
		all = append(all, addresses...)
		r := Request{text: "ip route show table all", typ: unix.RTM_GETROUTE, body: body(&nl.RtMsg{RtMsg: unix.RtMsg{Family: family}})}
		routes, err := dump(c, r, parseUses)
		if err != nil && !errors.Is(err, kernel.ErrInterrupted) && !errors.Is(err, kernel.ErrNotFound) {
			return nil, err
		}
		for _, uses := range routes {
			all = append(all, uses...)
		}
	}
	return all, nil
}

// parseUses reads an RTM_NEWROUTE: the route's use of its destination, and its uses of its
// gateways. A multipath route has several gateways.
func parseUses(b []byte) (uses []Use, any bool, err error) {
	if len(b) < unix.SizeofRtMsg {
		return nil, false, fmt.Errorf("netlink message of %d bytes, less than %d", len(b), unix.SizeofRtMsg)
	}
	m := nl.DeserializeRtMsg(b)
	if m.Flags&unix.RTM_F_CLONED != 0 || m.Type == unix.RTN_LOCAL || m.Type == unix.RTN_BROADCAST ||
		m.Type == unix.RTN_ANYCAST || m.Type == unix.RTN_MULTICAST {
		return nil, false, nil
	}
	route := Use{Sort: UseRoute, Table: uint32(m.Table)}
	var dst netip.Addr
	var gateways []netip.Addr
	var metric uint32
	err = attributes(b, unix.SizeofRtMsg, func(typ uint16, value []byte) {
		switch typ {
		case unix.RTA_DST:
			dst, _ = netip.AddrFromSlice(value)
		case unix.RTA_OIF:
			route.Index = int(uint32Of(value))
		case unix.RTA_PRIORITY:
			metric = uint32Of(value)
		case unix.RTA_TABLE:
			route.Table = uint32Of(value)
		case unix.RTA_MULTIPATH:
			for len(value) >= unix.SizeofRtNexthop {
				size := min(max(int(binary.NativeEndian.Uint16(value)), unix.SizeofRtNexthop), len(value))
				gateways = append(gateways, gatewaysIn(value[unix.SizeofRtNexthop:size])...)
				value = value[min((size+3)&^3, len(value)):]
			}
		}
	})
	if err != nil || route.Table == unix.RT_TABLE_LOCAL {
		return nil, false, err
	}
	if m.Protocol == stamp.Protocol {
		var ofPool bool
		if route.Agent, ofPool = stamp.OfMetric(metric); !ofPool || m.Type != unix.RTN_UNREACHABLE {
			return nil, false, nil
		}
		route.Index = 0 // for IPv6 the kernel sends the index of lo
	}
	gateways = append(gateways, gatewaysIn(b[unix.SizeofRtMsg:])...)
	if len(gateways) > 0 {
		route.Via = gateways[0]
	}
	if dst.IsValid() && m.Dst_len > 0 && !dst.IsMulticast() && !dst.IsLinkLocalUnicast() {
		route.Prefix = netip.PrefixFrom(dst, int(m.Dst_len))
		uses = append(uses, route)
	}
	for _, g := range gateways {
		uses = append(uses, Use{Sort: UseGateway, Prefix: netip.PrefixFrom(g, g.BitLen()), Index: route.Index, Table: route.Table})
	}
	return uses, len(uses) > 0, nil
}

// gatewaysIn returns the gateways among the attributes of a route, or of one of its nexthops.
// RTA_VIA has two bytes for a family, and behind them a gateway of another family than the route's.
func gatewaysIn(b []byte) (all []netip.Addr) {
	via := within(b, unix.RTA_VIA)
	for _, raw := range [][]byte{within(b, unix.RTA_GATEWAY), via[min(2, len(via)):]} {
		if g, ok := netip.AddrFromSlice(raw); ok {
			all = append(all, g)
		}
	}
	return all
}

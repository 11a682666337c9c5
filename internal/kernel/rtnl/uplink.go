package rtnl

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/kernel"
)

// UplinkMTU returns the smallest MTU, in bytes, of the links to which default routes
// lead, or 0 if there is no default route. The kernel walks the main table for UplinkMTU, so call it at
// an agent's start only.
//
//	ip route show default; ip link show DEV
func (c *Conn) UplinkMTU() (int, error) {
	mtu := 0
	uplinks, err := c.Uplinks()
	if err != nil {
		return 0, err
	}
	for _, index := range uplinks {
		var l Link
		if err := c.Do(GetLinkAt(index, &l)); err != nil {
			return 0, err
		}
		if mtu == 0 || l.MTU < mtu {
			mtu = l.MTU
		}
	}
	return mtu, nil
}

// Uplinks returns the indices of the links to which default routes of either family lead. It returns a
// link's index once for each of these routes.
//
//	ip route show default
func (c *Conn) Uplinks() (all []int, err error) {
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		uplinks, err := c.uplinks(family)
		// If the table changes all the time, the last list is good enough; if there is no
		// table, it has no routes.
		if err != nil && !errors.Is(err, kernel.ErrInterrupted) && !errors.Is(err, kernel.ErrNotFound) {
			return nil, err
		}
		all = append(all, uplinks...)
	}
	return all, nil
}

// uplinks lists the links that the default routes of a family lead to.
func (c *Conn) uplinks(family uint8) ([]int, error) {
	r := Request{
		text: "ip route show default",
		typ:  unix.RTM_GETROUTE,
		body: body(&nl.RtMsg{RtMsg: unix.RtMsg{Family: family, Table: unix.RT_TABLE_MAIN, Type: unix.RTN_UNICAST}}),
	}
	routes, err := dump(c, r, parseUplinks)
	var uplinks []int
	for _, links := range routes {
		uplinks = append(uplinks, links...)
	}
	return uplinks, err
}

// parseUplinks reads the links to which an RTM_NEWROUTE leads, if the route is a default route.
func parseUplinks(b []byte) (links []int, isDefault bool, err error) {
	if len(b) < unix.SizeofRtMsg {
		return nil, false, fmt.Errorf("netlink message of %d bytes, less than %d", len(b), unix.SizeofRtMsg)
	}
	if m := nl.DeserializeRtMsg(b); m.Dst_len != 0 || m.Type != unix.RTN_UNICAST || m.Table != unix.RT_TABLE_MAIN {
		return nil, false, nil
	}
	links, err = leadsTo(b)
	return links, true, err
}

// leadsTo returns the indices of the links to which an RTM_NEWROUTE leads. A multipath route leads to
// several links.
func leadsTo(b []byte) (links []int, err error) {
	err = attributes(b, unix.SizeofRtMsg, func(typ uint16, value []byte) {
		switch typ {
		case unix.RTA_OIF:
			links = append(links, int(uint32Of(value)))
		case unix.RTA_MULTIPATH:
			for len(value) >= unix.SizeofRtNexthop {
				size := int(binary.NativeEndian.Uint16(value))
				links = append(links, int(uint32Of(value[4:])))
				value = value[min(max((size+3)&^3, unix.SizeofRtNexthop), len(value)):]
			}
		}
	})
	return links, err
}

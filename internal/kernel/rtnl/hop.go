package rtnl

import (
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Hop says where a packet of the node goes first.
type Hop int

const (
	NoHop  Hop = iota // nowhere: there is no way, or the node has the address itself
	OnLink            // to the address, by one of the node's links
	Router            // to a router
)

// Hops returns, for each of addrs, where packets of the node to it go first. Policy rules apply.
//
//	ip route get ADDR
func (c *Conn) Hops(addrs []netip.Addr) []Hop {
	hops := make([]Hop, len(addrs))
	rs := make([]Request, len(addrs))
	for i, a := range addrs {
		msg := &nl.RtMsg{RtMsg: unix.RtMsg{Family: uint8(family(a)), Dst_len: uint8(a.BitLen())}}
		rs[i] = Request{
			text: fmt.Sprint("ip route get ", a), typ: unix.RTM_GETROUTE,
			body: body(msg, nl.NewRtAttr(unix.RTA_DST, a.AsSlice())),
			answer: func(b []byte) error {
				hop := OnLink
				err := attributes(b, unix.SizeofRtMsg, func(typ uint16, _ []byte) {
					if typ == unix.RTA_GATEWAY || typ == unix.RTA_VIA {
						hop = Router
					}
				})
				if err == nil && nl.DeserializeRtMsg(b).Type == unix.RTN_UNICAST {
					hops[i] = hop
				}
				return err
			},
		}
	}
	c.Each(rs...)
	return hops
}

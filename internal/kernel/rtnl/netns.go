package rtnl

import (
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// NoNetns is the NetnsID of a network namespace that has no number here.
const NoNetns = -1

// NetnsID reads into id the number by which the Conn's network namespace knows another namespace, whose
// open file descriptor is fd. The kernel numbers the namespace of a link's other end when somebody
// first reads the link.
//
//	ip netns list-id
func NetnsID(fd int, id *int) Request {
	return Request{
		text: "ip netns list-id",
		typ:  unix.RTM_GETNSID,
		body: body(nl.NewRtGenMsg(), nl.NewRtAttr(netlink.NETNSA_FD, nl.Uint32Attr(uint32(fd)))),
		answer: func(b []byte) error {
			*id = NoNetns
			return attributes(b, nl.NewRtGenMsg().Len(), func(typ uint16, value []byte) {
				if typ == netlink.NETNSA_NSID {
					*id = int(int32(uint32Of(value)))
				}
			})
		},
	}
}

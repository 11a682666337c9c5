package rtnl

import (
	"errors"
	"fmt"
	"slices"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/kernel"
)

// From include/uapi/linux/if_addr.h.
const (
	ifaProto        = 11 // IFA_PROTO, since Linux 5.18
	ifaprotKernelRA = 2  // IFAPROT_KERNEL_RA
)

// Advertised returns the indices of links that have a route or an address by a router
// advertisement, each once. Before Linux 5.18 the kernel does not say which addresses came by an
// advertisement.
//
//	ip -6 route show table all proto ra; ip -6 addr show proto kernel_ra
func (c *Conn) Advertised() ([]int, error) {
	routes, err := dump(c, Request{
		text: "ip -6 route show table all proto ra",
		typ:  unix.RTM_GETROUTE,
		body: body(&nl.RtMsg{RtMsg: unix.RtMsg{Family: unix.AF_INET6, Protocol: unix.RTPROT_RA}}),
	}, parseAdvertised)
	// If the routes change all the time, the last list is good enough; if there is no table, there are
	// no routes.
	if err != nil && !errors.Is(err, kernel.ErrInterrupted) && !errors.Is(err, kernel.ErrNotFound) {
		return nil, err
	}
	links, err := dump(c, Request{
		text: "ip -6 addr show proto kernel_ra",
		typ:  unix.RTM_GETADDR,
		body: body(nl.NewIfAddrmsg(unix.AF_INET6)),
	}, func(b []byte) (index int, advertised bool, err error) {
		err = attributes(b, unix.SizeofIfAddrmsg, func(typ uint16, value []byte) {
			advertised = advertised || typ == ifaProto && slices.Equal(value, []byte{ifaprotKernelRA})
		})
		if err != nil || !advertised {
			return 0, false, err
		}
		return int(nl.DeserializeIfAddrmsg(b).Index), true, nil
	})
	if err != nil && !errors.Is(err, kernel.ErrInterrupted) {
		return nil, err
	}
	links = append(links, slices.Concat(routes...)...)
	slices.Sort(links)
	return slices.Compact(links), nil
}

// parseAdvertised reads the links to which an RTM_NEWROUTE leads, if the route came by a router
// advertisement. An older kernel lists routes of all protocols.
func parseAdvertised(b []byte) (links []int, advertised bool, err error) {
	if len(b) < unix.SizeofRtMsg {
		return nil, false, fmt.Errorf("netlink message of %d bytes, less than %d", len(b), unix.SizeofRtMsg)
	}
	if nl.DeserializeRtMsg(b).Protocol != unix.RTPROT_RA {
		return nil, false, nil
	}
	links, err = leadsTo(b)
	return links, true, err
}

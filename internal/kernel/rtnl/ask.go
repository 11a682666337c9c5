package rtnl

import (
	"errors"
	"net/netip"

	"github.com/berth-net/berth/internal/kernel"
)

// AskAnew has the kernel forget which MAC addresses have that are on a link, so that it asks the link for them with the next packet.
// Permanent neighbours stay, and so do those of addresses behind a router.
//
//	ip neigh del ADDR dev DEV
func (c *Conn) AskAnew(addrs []netip.Addr) (failed error) {
	for _, a := range addrs {
		var way Way
		if c.Do(GetWay(a, netip.Addr{}, 0, &way)) != nil || way.Local || way.Gateway.IsValid() {
			continue // nobody sends there by a neighbour of its own
		}
		var permanent Neighbour
		err := c.Do(GetNeighbour(a, way.Index, &permanent))
		if err == nil && !permanent.Addr.IsValid() {
			err = c.Do(DelNeighbour(a, way.Index))
		}
		if !errors.Is(err, kernel.ErrNotFound) {
			failed = errors.Join(failed, err)
		}
	}
	return failed
}

package rtnl

import (
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/kernel"
)

// UplinkMTU returns the smallest MTU, in bytes, of the links that default
// routes leave by, or 0 if there is no default route. It lists routes: for an
// agent's start only.
//
//	ip route show default; ip link show DEV
func (c *Conn) UplinkMTU() (int, error) {
	mtu := 0
	err := c.Inside(func() error {
		for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
			routes, err := netlink.RouteListFiltered(family, &netlink.Route{Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_TABLE)
			if err != nil {
				return fmt.Errorf("ip route show default: %w", err)
			}
			for _, r := range routes {
				if ones := maskLen(r); ones != 0 || r.LinkIndex == 0 || r.Type != unix.RTN_UNICAST {
					continue
				}
				link, err := netlink.LinkByIndex(r.LinkIndex)
				if err != nil {
					return fmt.Errorf("ip link show %d: %w", r.LinkIndex, err)
				}
				if m := link.Attrs().MTU; mtu == 0 || m < mtu {
					mtu = m
				}
			}
		}
		return nil
	})
	return mtu, kernel.Classify(err)
}

// maskLen returns the length of a route's destination; a default route has 0.
func maskLen(r netlink.Route) int {
	if r.Dst == nil {
		return 0
	}
	ones, _ := r.Dst.Mask.Size()
	return ones
}

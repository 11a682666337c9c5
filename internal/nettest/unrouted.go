package nettest

import (
	"net"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/conform/oracle"
)

// trickle is how long awaitRoutes waits for what the kernel does later at most.
const trickle = 2 * time.Second

// awaitRoutes waits until each IPv6 address of the calling thread's network namespace has its local route: the kernel adds the route
// in a worker, behind the answer to `ip addr add`, also without duplicate address detection (addrconf_dad_work). On a busy
// machine a look that comes at once lacks the route, and the next look has it. If a route does not come, the look shows that.
func awaitRoutes() error {
	for end := time.Now().Add(trickle); ; time.Sleep(time.Millisecond) {
		waits, err := unrouted()
		if err != nil || !waits || time.Now().After(end) {
			return err
		}
	}
}

// unrouted reports whether an address that is ready for use has no local route.
func unrouted() (bool, error) {
	links, err := oracle.List(netlink.LinkList)
	if err != nil {
		return false, err
	}
	runs := map[int]bool{}
	for _, l := range links {
		const ready = net.FlagUp | net.FlagRunning
		runs[l.Attrs().Index] = l.Attrs().Flags&ready == ready
	}
	addrs, err := oracle.List(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_V6) })
	if err != nil {
		return false, err
	}
	routes, err := oracle.List(func() ([]netlink.Route, error) {
		return netlink.RouteListFiltered(netlink.FAMILY_V6, &netlink.Route{Table: unix.RT_TABLE_LOCAL}, netlink.RT_FILTER_TABLE)
	})
	if err != nil {
		return false, err
	}
	has := map[string]bool{}
	for _, r := range routes {
		if r.Dst != nil {
			has[r.Dst.IP.String()] = true
		}
	}
	for _, a := range addrs {
		const unready = unix.IFA_F_TENTATIVE | unix.IFA_F_DADFAILED
		if runs[a.LinkIndex] && a.Flags&unready == 0 && !has[a.IP.String()] {
			return true, nil
		}
	}
	return false, nil
}

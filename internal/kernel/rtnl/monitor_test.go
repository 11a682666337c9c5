package rtnl_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/stamp"
)

const monitored = "btest" // the prefix of the instance's links

// listen begins to listen, in the background. told returns the news since the last call of told, as
// text.
func listen(t *testing.T, c *rtnl.Conn) (groups stamp.Groups, told func() []string) {
	t.Helper()
	groups, err := stamp.GroupsOf(monitored[1:])
	must(t, err)
	m, err := c.Monitor(groups, monitored)
	must(t, err)
	news := make(chan string, 10_000)
	ended := make(chan error, 1)
	go func() {
		for {
			some, err := m.Next()
			if err != nil {
				ended <- err
				return
			}
			for _, n := range some {
				news <- show(n)
			}
		}
	}()
	t.Cleanup(func() {
		m.Close()
		if err := <-ended; !errors.Is(err, os.ErrClosed) {
			t.Errorf("a closed monitor says %v, not %v", err, os.ErrClosed)
		}
	})
	return groups, func() (all []string) {
		for {
			select {
			case n := <-news:
				all = append(all, n)
			default:
				return all
			}
		}
	}
}

// waitTold waits for a piece of news, and adds all news until then to seen.
func waitTold(t *testing.T, told func() []string, seen *[]string, want string) {
	t.Helper()
	nettest.Eventually(t, want, func() bool {
		*seen = append(*seen, told()...)
		return slices.Contains(*seen, want)
	})
}

func show(n rtnl.News) string {
	switch n.Change {
	case rtnl.LinkSet:
		return fmt.Sprint("set ", n.Link.Name, " mtu ", n.Link.MTU)
	case rtnl.LinkDown:
		return "down " + n.Link.Name
	case rtnl.LinkGone:
		return "gone " + n.Link.Name
	case rtnl.RouteGone:
		return "no route " + n.Route.Dst.String()
	case rtnl.Reshaped:
		return fmt.Sprint("shape ", n.Link.Index, " ", n.Shape)
	case rtnl.Repoliced:
		return fmt.Sprint("police ", n.Link.Index, " ", n.Shape)
	case rtnl.Unforwarded:
		return fmt.Sprint("unforwarded ", n.Link.Index, " IPv6 ", n.IPv6)
	case rtnl.Addressed:
		return "addressed"
	}
	return "lost"
}

// A monitor tells of changes to the instance's live links and to Berth's routes. It does
// not tell of changes to other links and routes, or to links that are coming or cut off.
func TestMonitor(t *testing.T) {
	c := open(t, nil)
	groups, told := listen(t, c)
	var seen []string
	wait := func(want string) { t.Helper(); waitTold(t, told, &seen, want) }

	for i, name := range []string{monitored + "live", "bother", monitored + "cut"} {
		link, _ := veth(t, c, name)
		must(t, c.Do(rtnl.SetLink(name, rtnl.Group([]uint32{groups.Live(), 7, groups.Cut()}[i]))))
		route := rtnl.Route{Dst: prefix(fmt.Sprintf("10.88.0.%d/32", i)), Index: link.Index}
		must(t, c.Do(rtnl.AddRoute(route), rtnl.SetLink(name, rtnl.MTU(1300+i)), rtnl.DelRoute(route)))
		wait("no route " + route.Dst.String()) // the monitor tells of all routes of Berth's
		must(t, c.Do(rtnl.SetLink(name, rtnl.Down())))
	}
	wait("set " + monitored + "live mtu 1300")
	wait("down " + monitored + "live")
	must(t, c.Do(rtnl.SetLink(monitored+"live", rtnl.Up()), rtnl.SetLink(monitored+"live", rtnl.Down())))

	// Somebody renames a live link, and moves a live link to another group.
	link := nettest.Link(t, monitored+"live")
	must(t, netlink.LinkSetName(link, "renamed"))
	wait("set renamed mtu 1300")
	must(t, netlink.LinkSetName(link, monitored+"live"))
	must(t, netlink.LinkSetMTU(link, 1299), netlink.LinkSetGroup(link, 0))
	wait("set " + monitored + "live mtu 1299")

	// A link that loses its name and its group at once, but keeps its alias or its second
	// name; and a link whose alias or second name is another program's.
	for i, marked := range []string{"alias", "second name"} {
		l, _ := veth(t, c, fmt.Sprint(monitored, "all", i))
		must(t, c.Do(rtnl.SetLinkAt(l.Index, rtnl.Group(groups.Live()))))
		foreign, _ := veth(t, c, fmt.Sprint("foreign", i))
		if marked == "alias" {
			must(t, c.Do(rtnl.SetLinkAt(l.Index, rtnl.Alias(stamp.Alias(monitored[1:]+"aaaaaa", "klmnopqrst", stamp.Key{}, 0)))))
			must(t, c.Do(rtnl.SetLinkAt(foreign.Index, rtnl.Alias("berth"))))
		} else {
			must(t, c.Do(rtnl.AddAltName(l.Name, stamp.AltName(l.Name)), rtnl.AddAltName(foreign.Name, "berth-bother")))
		}
		for j, at := range []int{foreign.Index, l.Index} {
			nettest.Run(t, nil, fmt.Sprintf("ip link set dev %s group 0 mtu 1287 name other%d%d", []string{foreign.Name, l.Name}[j], i, j))
			must(t, c.Do(rtnl.SetLinkAt(at, rtnl.MTU(1288))))
		}
		wait(fmt.Sprintf("set other%d1 mtu 1288", i))
		must(t, c.Do(rtnl.DelLinkAt(l.Index), rtnl.DelLinkAt(foreign.Index)))
		wait(fmt.Sprintf("gone other%d1", i))
	}

	// Others delete a route of their own, and replace one of Berth's routes.
	ours := rtnl.Route{Dst: prefix("10.99.0.0/16"), Unreachable: true, Metric: 5}
	must(t, c.Do(rtnl.AddRoute(ours)))
	foreign := &netlink.Route{Type: unix.RTN_BLACKHOLE, Protocol: unix.RTPROT_STATIC, Priority: 5}
	_, foreign.Dst, _ = net.ParseCIDR("10.98.0.0/16")
	must(t, netlink.RouteAdd(foreign), netlink.RouteDel(foreign))
	_, foreign.Dst, _ = net.ParseCIDR("10.99.0.0/16")
	must(t, netlink.RouteReplace(foreign))
	t.Cleanup(func() { netlink.RouteDel(foreign) })
	wait("no route 10.99.0.0/16")

	// Somebody deletes a live link under another name.
	away, _ := veth(t, c, monitored+"away")
	must(t, c.Do(rtnl.SetLinkAt(away.Index, rtnl.Group(groups.Live())), rtnl.Rename(away.Index, "bother2"), rtnl.DelLinkAt(away.Index)))
	wait("gone bother2")

	// Somebody moves a link to another network namespace and back: the kernel sets the link down.
	moved, _ := veth(t, c, monitored+"moved")
	must(t, c.Do(rtnl.SetLinkAt(moved.Index, rtnl.Group(groups.Live()))))
	elsewhere := nettest.Pod(t)
	nettest.Run(t, nil, "ip link set "+moved.Name+" netns "+filepath.Base(elsewhere.Ref().Path))
	wait("gone " + moved.Name)
	seen = slices.DeleteFunc(seen, func(n string) bool { return n == "down "+moved.Name }) // news from before the move
	nettest.Run(t, elsewhere, fmt.Sprint("ip link set ", moved.Name, " netns ", os.Getpid()))
	wait("down " + moved.Name)

	// A link gets an address. All links that were set up have link-local ones, which are nobody's business.
	for _, a := range []string{"192.0.2.9/32", "2001:db8::9/128"} {
		if slices.Contains(seen, "addressed") {
			t.Errorf("told of an address before %s", a)
		}
		nettest.Run(t, nil, "ip addr add "+a+" dev lo")
		wait("addressed")
		seen = slices.DeleteFunc(seen, func(n string) bool { return n == "addressed" })
	}

	must(t, c.Do(rtnl.DelLink(monitored+"live"), rtnl.DelLink("bother"), rtnl.DelLink(monitored+"cut")))
	wait("gone " + monitored + "cut")
	wait("gone " + monitored + "live")
	for _, n := range seen {
		if strings.Contains(n, "foreign") || strings.Contains(n, "other00") || strings.Contains(n, "other10") {
			t.Errorf("told, although no mark of it is ours: %s", n)
		}
		if strings.HasSuffix(n, "bother") || strings.Contains(n, "bother mtu") || strings.Contains(n, "10.98.") || n == "down "+monitored+"cut" || strings.Contains(n, "cut mtu 1302") {
			t.Errorf("told, although it is nobody's business: %s", n)
		}
	}
}

// A monitor that nobody reads says that it has lost news, and goes on.
func TestMonitorLoses(t *testing.T) {
	c := open(t, nil)
	groups, err := stamp.GroupsOf(monitored[1:])
	must(t, err)
	m, err := c.Monitor(groups, monitored)
	must(t, err)
	defer m.Close()
	route := rtnl.Route{Dst: prefix("10.77.0.0/16"), Unreachable: true}
	rs := make([]rtnl.Request, 0, 4000)
	for len(rs) < cap(rs) {
		rs = append(rs, rtnl.AddRoute(route), rtnl.DelRoute(route))
	}
	lost := false
	for range 20 { // until even a large buffer is full
		must(t, c.Do(rs...))
	}
	timer := time.AfterFunc(nettest.Deadline, func() { m.Close() })
	defer timer.Stop()
	for !lost {
		news, err := m.Next()
		must(t, err)
		lost = slices.ContainsFunc(news, func(n rtnl.News) bool { return n.Change == rtnl.Lost })
	}
	// The monitor tells of later changes, and of no earlier change.
	later := rtnl.Route{Dst: prefix("10.78.0.0/16"), Unreachable: true}
	must(t, c.Do(rtnl.AddRoute(later), rtnl.DelRoute(later)))
	news, err := m.Next()
	must(t, err)
	if len(news) != 1 || news[0].Change != rtnl.RouteGone || news[0].Route.Dst != later.Dst {
		t.Errorf("after what was lost: %+v", news)
	}
}

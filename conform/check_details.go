package conform

import (
	"encoding/json"
	"fmt"
	"net"
	"path/filepath"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/conform/oracle"
)

// detailChecks are about what add/result does not look at: routes, and what results can say since 1.1.0.
var detailChecks = []Check{
	{
		Name: "add/routes", Level: Must, Spec: "CNI 1.1.0, section 5, ADD Success: routes created by this attachment; 0.4.0, Well-known Structures, Routes",
		Says:  "the routes that the result lists are in the container, in any of its tables",
		Needs: []string{"add/result"}, run: addRoutes,
	},
	{
		Name: "add/details", Level: Must, Spec: "CNI 1.1.0, section 5, ADD Success: mtu, socketPath and pciID of interfaces; mtu, advmss, priority, table and scope of routes",
		Since: "1.1.0",
		Says:  "what a result says of an interface's MTU, and of a route's MTU, MSS, priority, table and scope, is so",
		Needs: []string{"add/routes"}, run: addDetails,
	},
	{
		Name: "add/default-route", Level: Own, Early: Should, Spec: "CNI 0.4.0, IP Allocation, Notes: another network may have a default route (later the suite's own)",
		Says: "ADD succeeds in a container that has a default route of another interface already",
		Each: true, Needs: []string{"add/result"}, run: addDefaultRoute, usual: true,
	},
}

// details are what results can say since 1.1.0.
type details struct {
	Interfaces []struct {
		Name       string  `json:"name"`
		MTU        *int    `json:"mtu"`
		Sandbox    string  `json:"sandbox"`
		SocketPath *string `json:"socketPath"`
		PCI        *string `json:"pciID"`
	} `json:"interfaces"`
	Routes []detailedRoute `json:"routes"`
}

type detailedRoute struct {
	routeItem
	MTU      *int   `json:"mtu"`
	MSS      *int   `json:"advmss"`
	Priority *int   `json:"priority"`
	Table    *int   `json:"table"`
	Scope    *uint8 `json:"scope"`
}

// allRoutes returns the routes of a pod's interface in all tables.
func (t *T) allRoutes(a *Attachment) (all []netlink.Route) {
	l := t.linkNow(a)
	if l == nil {
		t.noInterface(a)
		return nil
	}
	t.must(a.Pod.Do(func() (err error) {
		all, err = oracle.List(func() ([]netlink.Route, error) {
			return netlink.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE)
		})
		return err
	}))
	return all
}

// to returns the routes to the destination of a route of the result, and over its gateway, if it has one.
func (one routeItem) to(all []netlink.Route) (found []netlink.Route) {
	_, dst, err := net.ParseCIDR(one.Dst)
	if err != nil {
		return nil
	}
	gw := net.ParseIP(one.GW)
	for _, r := range all {
		if destination(&r).String() == dst.String() && (gw == nil || leads(r, gw)) {
			found = append(found, r)
		}
	}
	return found
}

// leads reports whether a route leads over a gateway, which may be one of several, or of the other family.
func leads(r netlink.Route, gw net.IP) bool {
	via := func(to netlink.Destination) bool {
		v, ok := to.(*netlink.Via)
		return ok && v.Addr.Equal(gw)
	}
	return gw.Equal(r.Gw) || via(r.Via) || slices.ContainsFunc(r.MultiPath, func(n *netlink.NexthopInfo) bool { return gw.Equal(n.Gw) || via(n.Via) })
}

func addRoutes(t *T) {
	a := t.Attached()
	all := t.allRoutes(a)
	r := t.mustResult(a)
	if len(r.Routes) == 0 {
		t.Unsupportedf("the result lists no routes")
	}
	for _, one := range r.Routes {
		if len(one.to(all)) == 0 {
			t.Failf("the result lists a route to %s%s, but the container has none", one.Dst, by(one.GW))
		}
	}
	t.MustDel(a)
}

func by(gw string) string {
	if gw == "" {
		return ""
	}
	return " by " + gw
}

func addDetails(t *T) {
	a := t.Attached()
	all := t.allRoutes(a)
	var d details
	if err := json.Unmarshal(a.Result, &d); err != nil {
		t.Fatalf("the result of ADD does not have the form of CNI 1.1.0: %v: %s", err, short(a.Result))
	}
	for _, one := range d.Interfaces {
		if one.SocketPath != nil && *one.SocketPath != "" && !filepath.IsAbs(*one.SocketPath) {
			t.Failf("the socketPath of %s is %q, which is not an absolute path", one.Name, *one.SocketPath)
		}
		if is := t.mtuOf(a, one.Name, one.Sandbox); one.MTU != nil && *one.MTU != 0 && is != 0 && *one.MTU != is {
			t.Failf("the result says MTU %d for %s, whose MTU is %d", *one.MTU, one.Name, is)
		}
	}
	for _, one := range d.Routes {
		if wrong := one.differs(one.to(all)); wrong != "" {
			t.Failf("the result says of the route to %s%s %s", one.Dst, by(one.GW), wrong)
		}
	}
	t.MustDel(a)
}

// mtuOf returns the MTU of an interface in the pod or on the node; 0 if there is none: add/result says so.
func (t *T) mtuOf(a *Attachment, name, sandbox string) (mtu int) {
	read := func() error {
		all, err := oracle.List(netlink.LinkList)
		for _, l := range all {
			if l.Attrs().Name == name {
				mtu = l.Attrs().MTU
			}
		}
		return err
	}
	switch sandbox {
	case "":
		t.must(t.Do(read))
	case a.Pod.Path:
		t.must(a.Pod.Do(read))
	}
	return mtu
}

// differs says what none of the routes of the kernel has of what the result says; "" if one has it all. A scope is told only if it is not that of the
// whole world, which is what 0, as the scope that is not set, means, too.
func (one detailedRoute) differs(found []netlink.Route) string {
	wrong := ""
	for _, r := range found {
		wrong = ""
		for _, d := range []struct {
			what string
			says *int
			is   int
		}{{"mtu", one.MTU, r.MTU}, {"advmss", one.MSS, r.AdvMSS}, {"priority", one.Priority, r.Priority}, {"table", one.Table, r.Table}} {
			if d.says != nil && *d.says != 0 && *d.says != d.is {
				wrong = fmt.Sprintf("%s %d, and it is %d", d.what, *d.says, d.is)
			}
		}
		if one.Scope != nil && *one.Scope != 0 && r.Family == netlink.FAMILY_V4 && int(*one.Scope) != int(r.Scope) {
			wrong = fmt.Sprintf("scope %d, and it is %d", *one.Scope, r.Scope)
		}
		if wrong == "" {
			return ""
		}
	}
	return wrong
}

// addDefaultRoute gives the pod another interface with a default route.
func addDefaultRoute(t *T) {
	if !t.usual().ipv4 {
		t.Unsupportedf("the plugins give no IPv4 address")
	}
	a := t.NewAttachment()
	t.must(a.Pod.Do(func() error {
		// ip link add other0 type veth peer name peer0
		l := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "other0"}, PeerName: "peer0"}
		if err := netlink.LinkAdd(l); err != nil {
			return fmt.Errorf("making an interface in a pod: %w", err)
		}
		if err := configure("peer0"); err != nil {
			return err
		}
		if err := configure("other0", "198.51.100.1/24"); err != nil {
			return err
		}
		// ip route add default via 198.51.100.2
		if err := netlink.RouteAdd(&netlink.Route{Gw: net.IPv4(198, 51, 100, 2)}); err != nil {
			return fmt.Errorf("adding a default route in a pod: %w", err)
		}
		return nil
	}))
	if got := t.Add(a); !got.OK() {
		t.Failf("ADD in a container that has a default route by another interface fails: %s", got)
	}
	t.wantDel(a, "DEL in a container that has a default route by another interface")
}

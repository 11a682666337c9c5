package conform

import (
	"encoding/json"
	"fmt"
	"net"
	"slices"

	"github.com/berth-net/berth/conform/oracle"
	"github.com/vishvananda/netlink"
)

// result is what a plugin answers to ADD (CNI 1.1, section 5: "ADD Success").
type result struct {
	Version    string      `json:"cniVersion"`
	Interfaces []iface     `json:"interfaces"`
	IPs        []ip        `json:"ips"`
	Routes     []routeItem `json:"routes"`
	DNS        struct {
		Nameservers []string `json:"nameservers"`
		Domain      string   `json:"domain"`
		Search      []string `json:"search"`
		Options     []string `json:"options"`
	} `json:"dns"`
}

type iface struct {
	Name    string `json:"name"`
	MAC     string `json:"mac"`
	Sandbox string `json:"sandbox"`    // "": on the host
	Socket  string `json:"socketPath"` // since 1.1.0; such an interface need not be one of the kernel's
}

type ip struct {
	Version   *string `json:"version"` // "4" or "6", up to 0.4.0
	Address   string  `json:"address"` // with its prefix length
	Gateway   string  `json:"gateway"`
	Interface *int    `json:"interface"` // index into the interfaces
}

type routeItem struct {
	Dst string `json:"dst"`
	GW  string `json:"gw"`
}

func readResult(raw json.RawMessage) (*result, error) {
	var r result
	if err := json.Unmarshal(raw, &r); err != nil {
		return nil, fmt.Errorf("the result of ADD does not have the form of a CNI result: %w: %s", err, short(raw))
	}
	return &r, nil
}

// mustResult reads the last result of an attachment. If the result cannot be read, mustResult ends
// the check.
func (t *T) mustResult(a *Attachment) *result {
	r, err := readResult(a.Result)
	if err != nil {
		t.Fatalf("%v", err)
	}
	return r
}

// of returns the index of the container's interface in the result, or -1 if the result does not list
// the interface.
func (r *result) of(a *Attachment) int {
	return slices.IndexFunc(r.Interfaces, func(i iface) bool { return i.Name == a.Ifname && i.Sandbox != "" })
}

// addresses returns the addresses, without prefix lengths, that the result gives to the
// interface with that index.
func (r *result) addresses(index int) []net.IP {
	var all []net.IP
	for _, one := range r.IPs {
		if one.Interface == nil || *one.Interface != index {
			continue
		}
		if addr, _, err := net.ParseCIDR(one.Address); err == nil {
			all = append(all, addr)
		}
	}
	return all
}

// podLink is an interface in a pod, as the kernel has it.
type podLink struct {
	netlink.Link
	addrs  []netlink.Addr
	routes []netlink.Route
}

// link reads the interface of that name in a pod. If there is no such interface, link returns nil.
func (p *Pod) link(name string) (found *podLink, err error) {
	err = p.Do(func() error {
		all, err := oracle.List(netlink.LinkList)
		if err != nil {
			return fmt.Errorf("listing links: %w", err)
		}
		at := slices.IndexFunc(all, func(l netlink.Link) bool { return l.Attrs().Name == name })
		if at < 0 {
			return nil
		}
		found = &podLink{Link: all[at]}
		found.addrs, err = oracle.List(func() ([]netlink.Addr, error) { return netlink.AddrList(all[at], netlink.FAMILY_ALL) })
		if err != nil {
			return fmt.Errorf("listing addresses of %s: %w", name, err)
		}
		found.routes, err = oracle.List(func() ([]netlink.Route, error) { return netlink.RouteList(all[at], netlink.FAMILY_ALL) })
		if err != nil {
			return fmt.Errorf("listing routes of %s: %w", name, err)
		}
		return nil
	})
	return found, err
}

// linkNow reads an attachment's interface. If the kernel cannot be asked, linkNow ends the check.
func (t *T) linkNow(a *Attachment) *podLink {
	l, err := a.Pod.link(a.Ifname)
	t.must(err)
	return l
}

// has returns the address of the link that equals addr, or nil if the link does not have addr.
func (l *podLink) has(addr net.IP) *netlink.Addr {
	for i := range l.addrs {
		if l.addrs[i].IP.Equal(addr) {
			return &l.addrs[i]
		}
	}
	return nil
}

// route returns the link's route to the destination of item, or nil if there is no such route.
func (l *podLink) route(item routeItem) *netlink.Route {
	_, dst, err := net.ParseCIDR(item.Dst)
	if err != nil {
		return nil
	}
	gw := net.ParseIP(item.GW)
	for i := range l.routes {
		r := &l.routes[i]
		if destination(r).String() == dst.String() && (gw == nil || gw.Equal(r.Gw)) {
			return r
		}
	}
	return nil
}

// destination returns a route's destination, also for a default route.
func destination(r *netlink.Route) *net.IPNet {
	if r.Dst != nil {
		return r.Dst
	}
	size := 8 * net.IPv4len
	if r.Family == netlink.FAMILY_V6 {
		size = 8 * net.IPv6len
	}
	return &net.IPNet{IP: make(net.IP, size/8), Mask: net.CIDRMask(0, size)}
}

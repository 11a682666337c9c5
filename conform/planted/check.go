package main

import (
	"encoding/json"
	"errors"
	"net"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink"
)

// verify is CHECK: it looks whether everything that the result says of this attachment is still
// there (CNI 1.1, section 2, CHECK). It also looks for those parts of the attachment that the result
// does not mention.
func (c *call) verify() error {
	if c.fault("check-always-passes") {
		return nil
	}
	if c.fault("check-always-fails") {
		return fail(codeUnhealthy, "unhealthy")
	}
	if !c.fault("check-not-delegated") {
		if err := c.pass("CHECK"); err != nil {
			return err
		}
	}
	prev, err := c.previous()
	if err != nil {
		return err
	}
	l, err := c.find()
	if err != nil {
		return err
	}
	if l == nil {
		return fail(codeUnhealthy, "nothing is known of %s of %s", c.ifname, c.id)
	}
	if c.fault("check-ignores-prev-result") {
		prev = []netip.Prefix{netip.PrefixFrom(l.Address, l.Address.BitLen())}
	}
	there, err := l.hasRule()
	if err != nil || !there {
		return fail(codeUnhealthy, "the rule of %s is missing (%v)", l.Address, err)
	}
	if c.Chained {
		return nil
	}
	if err := c.verifyHost(l); err != nil {
		return err
	}
	pod, err := os.Open(c.netns)
	if err != nil {
		return fail(codeVariable, "CNI_NETNS: %w", err)
	}
	defer pod.Close()
	return inside(pod, func() error { return c.verifyPod(prev) })
}

func (c *call) verifyHost(l *lease) error {
	if c.fault("check-ignores-link") {
		return nil
	}
	link, err := netlink.LinkByName(l.Link)
	if err != nil {
		return fail(codeUnhealthy, "the host's end %s: %w", l.Link, err)
	}
	return hasRoute(podRoute(l, link), "to the pod")
}

// verifyPod looks for the link, the addresses and the routes.
func (c *call) verifyPod(prev []netip.Prefix) error {
	link, err := netlink.LinkByName(c.ifname)
	if err != nil {
		if c.fault("check-ignores-link") {
			return nil
		}
		return fail(codeUnhealthy, "the pod's %s: %w", c.ifname, err)
	}
	if link.Attrs().RawFlags&1 == 0 && !c.fault("check-ignores-link") { // IFF_UP
		return fail(codeUnhealthy, "the pod's %s is down", c.ifname)
	}
	if !c.fault("check-ignores-address") {
		for _, want := range prev {
			if !hasAddress(link, want) {
				return fail(codeUnhealthy, "%s is not on the pod's %s", want, c.ifname)
			}
		}
	}
	if c.fault("check-ignores-route") {
		return nil
	}
	if err := c.verifyRoutes(link); err != nil {
		return err
	}
	gateway := host(c.gateway())
	def := &netlink.Route{LinkIndex: link.Attrs().Index, Gw: gateway.IP}
	return errors.Join(hasRoute(def, "by the gateway"),
		hasRoute(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: gateway}, "to the gateway"))
}

// verifyRoutes looks for the routes of prevResult.
func (c *call) verifyRoutes(link netlink.Link) error {
	var prev struct {
		Routes []struct {
			Dst netip.Prefix `json:"dst"`
		} `json:"routes"`
	}
	if err := json.Unmarshal(c.Prev, &prev); err != nil {
		return fail(codeDecode, "decoding prevResult: %w", err)
	}
	for _, r := range prev.Routes {
		if r.Dst.Bits() == 0 {
			continue // that by the gateway
		}
		if c.fault("route-listed") {
			continue
		}
		dst := &net.IPNet{IP: r.Dst.Addr().AsSlice(), Mask: net.CIDRMask(r.Dst.Bits(), r.Dst.Addr().BitLen())}
		if err := hasRoute(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: dst}, "to "+r.Dst.String()); err != nil {
			return err
		}
	}
	return nil
}

func hasAddress(link netlink.Link, want netip.Prefix) bool {
	all, err := netlink.AddrList(link, netlink.FAMILY_V4)
	for _, a := range all {
		if err == nil && a.IPNet.String() == want.String() {
			return true
		}
	}
	return false
}

func hasRoute(r *netlink.Route, what string) error {
	filter := uint64(netlink.RT_FILTER_OIF | netlink.RT_FILTER_DST)
	if r.Gw != nil {
		filter |= netlink.RT_FILTER_GW
	}
	found, err := netlink.RouteListFiltered(netlink.FAMILY_V4, r, filter)
	if err != nil || len(found) == 0 {
		return fail(codeUnhealthy, "the route %s is missing (%v)", what, err)
	}
	return nil
}

// status is STATUS: it fails if the subnet has no free address for another pod.
func (c *call) status() error {
	if c.fault("status-fails") {
		return fail(codeAway, "away")
	}
	all, err := c.leases()
	if err != nil {
		return err
	}
	addresses := 0
	for a := c.gateway().Next(); a != broadcast(c.subnet) && c.subnet.Contains(a); a = a.Next() {
		addresses++
	}
	for _, l := range all {
		if !l.Chained && c.subnet.Contains(l.Address) {
			addresses--
		}
	}
	if addresses <= 0 && !c.fault("status-ignores-full") {
		return fail(codeAway, "subnet %s has no free address", c.subnet)
	}
	return nil
}

// previous reads the addresses of prevResult. If prevResult has no address, it returns an error.
func (c *call) previous() ([]netip.Prefix, error) {
	var prev struct {
		IPs []struct {
			Address netip.Prefix `json:"address"`
		} `json:"ips"`
	}
	if err := json.Unmarshal(c.Prev, &prev); err != nil {
		return nil, fail(codeDecode, "decoding prevResult: %w", err)
	}
	var all []netip.Prefix
	for _, ip := range prev.IPs {
		all = append(all, ip.Address)
	}
	if len(all) == 0 {
		return nil, fail(codeConfig, "prevResult has no address")
	}
	return all, nil
}

package mode

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/berth-net/berth/internal/cni"
	"github.com/berth-net/berth/internal/cni/netconf"
	"github.com/berth-net/berth/internal/ipam"
	"github.com/berth-net/berth/internal/kernel"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/stamp"
)

// Segments tells pools that have a segment from those that have none.
type Segments interface {
	// Segment returns the segment of a pool; nil: the pool has none.
	Segment(pool string) *ipam.Segment
	// PoolsWith returns the names of the pools that have a segment, or of those that have none.
	PoolsWith(segment bool) []string
}

// NativePools are the agent's pools, as native modes ask them.
type NativePools interface {
	Segments
	// CIDRs returns the prefixes from which a pool gives addresses.
	CIDRs(pool string) []netip.Prefix
	// PoolOf returns the name of the pool that has an address; "" if none has it.
	PoolOf(netip.Addr) string
}

// FitPool refuses a pool of the wrong sort for a mode. A native mode needs a pool that has a segment; another mode needs one that has none.
func FitPool(mode, pool string, native bool, s Segments) error {
	if native == (s.Segment(pool) != nil) {
		return nil
	}
	is, wants := "has no segment", "one that has a segment"
	if !native {
		is, wants = "has a segment", "one that has none"
	}
	fitting := "the agent has no such pool"
	if names := s.PoolsWith(native); len(names) > 0 {
		fitting = "these are " + strings.Join(names, ", ")
	}
	return cni.Errorf(cni.CodeConfig, "invalid configuration: pool", "pool %s %s, and mode %s needs %s: %s", pool, is, mode, wants, fitting)
}

// FitMTU refuses an MTU, in bytes, that is too small for IPv6 if one of the addresses is of it. 0 is no MTU. whose says where the addresses come
// from, such as "pool blue".
func FitMTU(mtu int, whose string, addrs []netip.Addr) error {
	if mtu > 0 && mtu < netconf.MinMTU6 && slices.ContainsFunc(addrs, netip.Addr.Is6) {
		return cni.Errorf(cni.CodeConfig, "invalid configuration",
			"mtu is %d; %s has IPv6, which needs %d or more", mtu, whose, netconf.MinMTU6)
	}
	return nil
}

// FitGateways refuses a gateway of a pod's default route that is on no network of a pool's segment. The pool has one.
func FitGateways(gateways []netip.Addr, pool string, s *ipam.Segment) error {
	for _, g := range gateways {
		if _, on := s.Subnet(g); !on {
			return cni.Errorf(cni.CodeConfig, "invalid request for a default route", "default-route is %s, which is in no subnet of pool %s", g, pool)
		}
	}
	return nil
}

// FitMaster refuses a link of the node, named by a key of the configuration, on which no pod may be: one that is not there, and Berth's own,
// through which other pods' traffic goes.
func FitMaster(key, name string, link func(string) (rtnl.Link, error)) error {
	_, tunnel := stamp.OfTunnel(name)
	if stamp.IsEnd(name) || tunnel {
		return cni.Errorf(cni.CodeConfig, "invalid configuration: "+key, "%s is %q, which is a link of Berth's own; want another link of the node", key, name)
	}
	_, err := link(name)
	if errors.Is(err, kernel.ErrNotFound) {
		return cni.Errorf(cni.CodeTryAgain, "the node lacks a link", "%s is %q, and the node has no such link", key, name)
	}
	if err != nil {
		return fmt.Errorf("looking at the node's link %q: %w", name, err)
	}
	return nil
}

// OnSegment returns addresses with the lengths of their networks' prefixes; false if an address is in no subnet of the segment.
func OnSegment(s *ipam.Segment, addrs []netip.Addr) (all []netip.Prefix, ok bool) {
	for _, a := range addrs {
		subnet, in := s.Subnet(a)
		if !in {
			return nil, false
		}
		all = append(all, netip.PrefixFrom(a, subnet.Bits()))
	}
	return all, len(all) > 0
}

// SegmentMAC returns the link-layer address of a pod with these addresses on a segment. It follows from an address and not from
// the owner's id: the segment's other hosts may remember for long which link-layer address the last pod with an address had, and
// with the same one their packets reach its successor. The address is the IPv6 one, if there is one: by IPv4 a new pod can tell all hosts
// of another link-layer address (arp_notify), and by IPv6 it cannot.
func SegmentMAC(addrs []netip.Addr) string {
	of := addrs[0]
	for _, a := range addrs {
		if a.Is6() {
			of = a
		}
	}
	sum := sha256.Sum256([]byte("segment " + of.String()))
	sum[0] = sum[0]&^1 | 2 // unicast, locally administered
	return net.HardwareAddr(sum[:6]).String()
}

// Gateways returns the gateways of a segment for the families of some addresses.
func Gateways(s *ipam.Segment, addrs []netip.Addr) (all []netip.Addr) {
	for _, a := range addrs {
		if g, has := s.Gateway(a); has {
			all = append(all, g)
		}
	}
	return all
}

// Everything is the destination of a default route by a gateway.
func Everything(gateway netip.Addr) netip.Prefix {
	if gateway.Is4() {
		return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	}
	return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
}

// IPs returns a pod's addresses as a CNI result has them. face is the place of the pod's interface among the result's interfaces.
func IPs(addrs []netip.Prefix, face int) (all []*types100.IPConfig) {
	for _, a := range addrs {
		all = append(all, &types100.IPConfig{Interface: &face, Address: IPNet(a)})
	}
	return all
}

// IPNet returns a prefix as a CNI result has it.
func IPNet(p netip.Prefix) net.IPNet {
	return net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

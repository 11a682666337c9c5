// Package link is the kind of a pod's veth pair: one end is in the node, and the kernel
// creates the other right in the pod. A hold of this kind includes everything that
// disappears with the pair: its addresses, routes and neighbours, in the pod and on the
// host.
package link

import (
	"crypto/sha256"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/kernel/rtnl"
)

// KindName is the name of the kind, in ledger records too.
const KindName = "link"

// A pod's default gateways, the same in every pod. No interface has these addresses: the
// pod has a permanent neighbour for them, with the MAC of the host veth.
var (
	Gateway4 = netip.MustParseAddr("169.254.1.1")
	Gateway6 = netip.MustParseAddr("fe80::1")
)

// DefaultMTU is a link's MTU, in bytes, where its spec says 0.
const DefaultMTU = 1500

// Spec says what a link has to be like. Its maker chooses all of it before Acquire makes the link.
type Spec struct {
	Name      string       `json:"name"`  // of the host's end: stamp.Link of instance and owner
	Alias     string       `json:"alias"` // of the host's end: says whose it is (stamp.Alias); at most 255 bytes
	Netns     ns.Ref       `json:"netns"`
	Ifname    string       `json:"ifname"`    // of the pod's end
	MTU       int          `json:"mtu"`       // bytes, of both ends; 0: DefaultMTU
	MAC       string       `json:"mac"`       // of the pod's end, as MACs writes it
	HostMAC   string       `json:"hostMAC"`   // of the host's end
	Addresses []netip.Addr `json:"addresses"` // the pod's; at least one, at most a few

	Ingress rtnl.Rate `json:"ingress,omitzero"` // of what the pod receives: the host's end sends at this rate at most
	Egress  rtnl.Rate `json:"egress,omitzero"`  // of what the pod sends: the pod's end sends at this rate at most
}

// Kind returns KindName.
func (s *Spec) Kind() string { return KindName }

func (s *Spec) String() string { return "link " + s.Name }

// MACs returns the link-layer addresses of the two ends of an owner's link. They are
// derived from the owner's ID, and locally administered.
func MACs(id hold.ID) (pod, host string) {
	sum := sha256.Sum256([]byte(id))
	mac := func(b []byte) string {
		b[0] = b[0]&^1 | 2 // unicast, locally administered
		return net.HardwareAddr(b).String()
	}
	return mac(sum[:6]), mac(sum[6:12])
}

// mtu returns the MTU with the default filled in.
func (s *Spec) mtu() int {
	if s.MTU == 0 {
		return DefaultMTU
	}
	return s.MTU
}

// has reports whether the pod has an address of IPv6 or, with false, of IPv4.
func (s *Spec) has(ipv6 bool) bool {
	return slices.ContainsFunc(s.Addresses, func(a netip.Addr) bool { return a.Is6() == ipv6 })
}

// ends are a spec's parsed link-layer addresses.
type ends struct{ pod, host net.HardwareAddr }

// check parses the spec's MACs, and refuses a spec that the kernel would refuse only after
// the link is made, or would take for something else.
func (s *Spec) check() (ends, error) {
	var e ends
	var err error
	if e.pod, err = net.ParseMAC(s.MAC); err != nil {
		return e, fmt.Errorf("the pod's MAC: %w", err)
	}
	if e.host, err = net.ParseMAC(s.HostMAC); err != nil {
		return e, fmt.Errorf("the host's MAC: %w", err)
	}
	switch {
	case e.pod.String() != s.MAC || e.host.String() != s.HostMAC:
		return e, fmt.Errorf("MACs %s and %s: want lower case and colons, as ip link shows them", s.MAC, s.HostMAC)
	case len(s.Alias) > 255 || strings.ContainsRune(s.Alias, 0):
		return e, fmt.Errorf("alias %.40q has %d bytes: want at most 255, and no NUL", s.Alias, len(s.Alias))
	case s.Ifname == "":
		return e, fmt.Errorf("no interface name")
	case len(s.Addresses) == 0:
		return e, fmt.Errorf("no address")
	}
	for _, a := range s.Addresses {
		if !a.IsValid() || a.Is4In6() || a.Zone() != "" {
			return e, fmt.Errorf("address %s: want plain IPv4 or IPv6", a)
		}
	}
	return e, nil
}

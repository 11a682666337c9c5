package ipam

import (
	"fmt"
	"net/netip"

	"github.com/berth-net/berth/internal/hold"
)

// Space is the space of the names that claim addresses.
const Space = "address"

// Name returns the name by which the ledger knows an address, such as {"address",
// "10.88.0.7"}. The pool is not part of it, because an address exists only once in a node's
// routing table, whatever pool it came from. If the name contained the pool, and somebody
// moved a CIDR to a pool of another name, the ledger would give an address to two owners and
// forget that it is in cooldown.
func Name(a netip.Addr) hold.Name { return hold.Name{Space: Space, Name: a.String()} }

// ParseName returns the address from which Name made n.
func ParseName(n hold.Name) (netip.Addr, error) {
	if n.Space != Space {
		return netip.Addr{}, fmt.Errorf("name %.100q: its space is not %s", n, Space)
	}
	a, err := netip.ParseAddr(n.Name)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("name %.100q: not an address", n)
	}
	if a.Zone() != "" || a.Is4In6() || a.String() != n.Name {
		return netip.Addr{}, fmt.Errorf("name %.100q: not the plain form of address %s", n, a.WithZone("").Unmap())
	}
	return a, nil
}

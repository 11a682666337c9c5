package conntrack

import "net/netip"

// EndSockets is the part of Forget that ends TCP connections.
func (t *Table) EndSockets(addrs []netip.Addr) error {
	among := map[netip.Addr]bool{}
	for _, a := range addrs {
		among[a] = true
	}
	return t.endSockets(among, func(a netip.Addr) bool { return among[a] })
}

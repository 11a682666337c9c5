// Package conntrack drops the kernel's memory of traffic.
package conntrack

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/kernel"
	"github.com/berth-net/berth/internal/kernel/ns"
)

// maxDumps is how often a table is listed again that changed under way.
const maxDumps = 5

// Table is the connection tracking table of one network namespace.
type Table struct{ handle *netlink.Handle }

// Open opens the table of a namespace.
func Open(at *ns.Netns) (*Table, error) {
	h, err := netlink.NewHandleAt(netns.NsHandle(at.Fd()), unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, kernel.Classify(fmt.Errorf("opening conntrack: %w", err))
	}
	return &Table{h}, nil
}

// Close closes the table's socket.
func (t *Table) Close() { t.handle.Close() }

// Forget deletes every entry in which one of the addresses stands, on either
// side and in either direction, in one pass over the table for each family.
// A kernel without connection tracking has nothing to forget.
//
//	conntrack -D -s ADDR; conntrack -D -d ADDR; and the same with -r and -q
func (t *Table) Forget(addrs []netip.Addr) error {
	v4, v6 := some(addrs, netip.Addr.Is4), some(addrs, netip.Addr.Is6)
	filter := among{}
	for _, a := range addrs {
		filter[a] = true
	}
	var errs []error
	if v4 {
		errs = append(errs, t.forget(unix.AF_INET, filter))
	}
	if v6 {
		errs = append(errs, t.forget(unix.AF_INET6, filter))
	}
	return errors.Join(errs...)
}

func (t *Table) forget(family netlink.InetFamily, filter among) error {
	var err error
	for range maxDumps {
		_, err = t.handle.ConntrackDeleteFilters(netlink.ConntrackTable, family, filter)
		if !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	err = kernel.Classify(err)
	if errors.Is(err, kernel.ErrUnsupported) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("forgetting connections: %w", err)
	}
	return nil
}

// among matches the flows that one of these addresses takes part in.
type among map[netip.Addr]bool

// MatchConntrackFlow looks at both directions: NAT shows an address in one of
// them alone.
func (m among) MatchConntrackFlow(f *netlink.ConntrackFlow) bool {
	return m.has(f.Forward.SrcIP) || m.has(f.Forward.DstIP) || m.has(f.Reverse.SrcIP) || m.has(f.Reverse.DstIP)
}

func (m among) has(ip net.IP) bool {
	a, ok := netip.AddrFromSlice(ip)
	return ok && m[a.Unmap()]
}

func some(addrs []netip.Addr, is func(netip.Addr) bool) bool {
	for _, a := range addrs {
		if is(a) {
			return true
		}
	}
	return false
}

package delegate

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/ipam"
)

// IPAMKind is the name of the kind of what an IPAM plugin gives, in ledger records too.
const IPAMKind = "ipam"

// IPAM is what an IPAM plugin gets, and the addresses that it has given (CNI 1.1, section 5): Type names the plugin, and Plugins has one
// configuration, the whole one of the network, with name and cniVersion.
//
// The addresses are the plugin's, which may give them to others as soon as its DEL has succeeded. Meanwhile they are names of
// the owner, so that nobody else on the node has one of them.
type IPAM struct{ Spec }

// Kind returns IPAMKind.
func (s *IPAM) Kind() string { return IPAMKind }

// Names returns the addresses that the plugin has given.
func (s *IPAM) Names() (names []hold.Name) {
	addrs, _ := s.Addresses()
	for _, a := range addrs {
		names = append(names, ipam.Name(a))
	}
	return names
}

// Lent says that the plugin decides who gets the addresses next.
func (s *IPAM) Lent() {}

// Addresses returns the addresses that the plugin has given, each once; none if its ADD has not succeeded.
func (s *IPAM) Addresses() (addrs []netip.Addr, err error) {
	if !s.Done {
		return nil, nil
	}
	r, err := s.Parsed()
	if err != nil {
		return nil, err
	}
	seen := map[netip.Addr]bool{}
	for _, ip := range r.IPs {
		a, ok := netip.AddrFromSlice(ip.Address.IP)
		if a = a.Unmap(); ok && !seen[a] {
			seen[a] = true
			addrs = append(addrs, a)
		}
	}
	return addrs, nil
}

// lends reports whether an IPAM plugin has given all that it was asked for. Nobody can see that but the plugin (Check).
func (s *Spec) lends() bool { return s.Type != "" && s.Done }

// IPAMKind returns the kind of what IPAM plugins give. It is of stage Reserve: a plugin takes its addresses back when all that uses them is
// gone, such as the pod's link and what the kernel remembers of the addresses.
func (d *Delegates) IPAMKind() hold.Kind {
	return hold.Kind{
		Stage:     hold.Reserve,
		New:       func() hold.Spec { return new(IPAM) },
		Discovers: true,
		Keyed:     true,
		Acquire:   d.acquire,
		Verify:    hold.VerifyEach(d.verifyIPAM),
		Release:   hold.Each(d.release),
	}
}

// verifyIPAM executes no plugin, as verify: what the ledger says that a plugin has given counts as there.
func (d *Delegates) verifyIPAM(_ context.Context, h hold.Hold) error {
	s, err := specOf(h)
	switch {
	case err != nil || s.lends():
		return err
	case d.mayHaveBegun(s):
		return fmt.Errorf("%s: %w", s, hold.ErrHalfMade)
	}
	return fmt.Errorf("%s: %w", s, hold.ErrGone)
}

package delegate

import (
	"slices"

	"github.com/berth-net/berth/internal/hold"
)

// LeaseKind is the name of the kind of what an IPAM plugin gives by the pod's interface, in ledger records too.
const LeaseKind = "lease"

// byInterface are the IPAM plugins that ask for addresses by the pod's interface.
var byInterface = []string{"dhcp"}

// AsksByInterface reports whether an IPAM plugin needs the pod's interface before it gives an address.
func AsksByInterface(plugin string) bool { return slices.Contains(byInterface, plugin) }

// Lease is what an IPAM plugin has given by the pod's interface. The plugin also says by the interface that the address is given back, as
// the plugin dhcp does (RFC 2131, section 4.4.6).
type Lease struct{ IPAM }

// Kind returns LeaseKind.
func (s *Lease) Kind() string { return LeaseKind }

// LeaseKind returns the kind of what IPAM plugins give by interfaces. It is of stage Use, for an owner whose holds go one after the other
// (hold.Owner.Ordered) and that has the interface ahead of it and the interface's addresses behind it: DEL is executed when the address is off the
// interface, so that no successor with the address meets the pod's traffic, and before the interface goes. If DEL fails or hangs it is owed, and
// the interface goes without it: a try has its limit (FirstTry).
func (d *Delegates) LeaseKind() hold.Kind {
	return hold.Kind{
		Stage:     hold.Use,
		New:       func() hold.Spec { return new(Lease) },
		Discovers: true,
		Keyed:     true,
		Acquire:   d.acquire,
		Verify:    hold.VerifyEach(d.verifyIPAM),
		Release:   hold.Each(d.release),
	}
}

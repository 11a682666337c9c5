package nodetest

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/berth-net/berth/internal/kernel/conntrack"
)

// tracked is connection tracking.
type tracked struct{ *doors }

func (t tracked) Close() {}

func (t tracked) ForgetUnless(addrs []netip.Addr, spared func(netip.Addr) bool) error {
	return t.step("forget", fmt.Sprint(addrs), func() error {
		t.mu.Unlock() // spared asks the node
		addrs := slices.DeleteFunc(slices.Clone(addrs), spared)
		t.mu.Lock()
		for _, a := range addrs {
			delete(t.flows, a)
		}
		return nil
	})
}

func (t tracked) Named(is func(netip.Addr) bool) (named []netip.Addr, err error) {
	return named, t.step("named", "", func() error {
		for a := range t.flows {
			if is(a) {
				named = append(named, a)
			}
		}
		return nil
	})
}

func (t tracked) ForgetExposed(conntrack.Rules) error                { return nil }
func (t tracked) ForgetMapped(conntrack.Mapped, conntrack.Led) error { return nil }

// Load and Trim answer for a table that is never full.
func (t tracked) Load() (entries, most int, err error) { return 0, 0, nil }
func (t tracked) Trim(context.Context, map[netip.Addr]int, conntrack.Bounds) (map[int]int, error) {
	return nil, nil
}

package flows_test

import (
	"errors"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kinds/flows"
)

type table struct {
	passes [][]netip.Addr
	err    error
}

func (t *table) ForgetUnless(addrs []netip.Addr, spared func(netip.Addr) bool) error {
	t.passes = append(t.passes, slices.DeleteFunc(slices.Clone(addrs), spared))
	return t.err
}

// nobody says that nobody else has any of the addresses.
type nobody struct{}

func (nobody) Reached([]netip.Addr) []netip.Addr { return nil }

// others says that somebody else has its addresses.
type others []netip.Addr

func (o others) Reached(addrs []netip.Addr) []netip.Addr {
	return slices.DeleteFunc(slices.Clone(addrs), func(a netip.Addr) bool { return !slices.Contains(o, a) })
}

// Release does not forget the entries of an address that somebody else has by now: they are not this
// pod's.
func TestOthersKeepTheirs(t *testing.T) {
	a, b := netip.MustParseAddr("10.88.0.1"), netip.MustParseAddr("fd00:88::1")
	tab := &table{}
	k := flows.Kind(tab, others{a})
	if errs := k.Release(t.Context(), []hold.Hold{{Spec: &flows.Spec{Addresses: []netip.Addr{a, b}}}}); errs[0] != nil {
		t.Error(errs)
	}
	if len(tab.passes) != 1 || !slices.Equal(tab.passes[0], []netip.Addr{b}) {
		t.Errorf("passes: %v", tab.passes)
	}
}

// One pass over the table serves all pods. In cilium #35411, #40219, each deletion
// walked the whole table.
func TestOnePassForAll(t *testing.T) {
	a, b := netip.MustParseAddr("10.88.0.1"), netip.MustParseAddr("fd00:88::1")
	tab := &table{}
	k := flows.Kind(tab, nobody{})
	hs := []hold.Hold{{Spec: &flows.Spec{Addresses: []netip.Addr{a}}}, {Spec: &hold.Unknown{Name: "x"}}, {Spec: &flows.Spec{Addresses: []netip.Addr{b}}}}
	errs := k.Release(t.Context(), hs)
	if errs[0] != nil || errs[1] == nil || errs[2] != nil {
		t.Errorf("errors: %v", errs)
	}
	if len(tab.passes) != 1 || !slices.Equal(tab.passes[0], []netip.Addr{a, b}) {
		t.Errorf("passes: %v", tab.passes)
	}
	tab.err = errors.New("no")
	if errs := k.Release(t.Context(), hs[:1]); !errors.Is(errs[0], tab.err) {
		t.Errorf("errors: %v", errs)
	}
}

// newcomers is a node on which somebody comes to have an address.
type newcomers struct{ come bool }

func (n *newcomers) Reached(addrs []netip.Addr) []netip.Addr {
	if n.come {
		return addrs
	}
	return nil
}

// A pass that takes long sees who comes to have an address meanwhile.
func TestOthersCome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &newcomers{}
		theirs, a := flows.Others(n), netip.MustParseAddr("10.88.0.1")
		if theirs(a) {
			t.Error("nobody has it")
		}
		n.come = true
		time.Sleep(time.Second) // not real
		if !theirs(a) {
			t.Error("somebody has it by now")
		}
	})
}

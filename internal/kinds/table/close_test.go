package table

import (
	"slices"
	"testing"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel/nft"
	"github.com/berth-net/berth/internal/nettest"
)

// Close takes the links of an owner's bound host ports away, and leaves other ports alone. A table that is written anew has the ports
// closed; and Map opens them again.
func TestClose(t *testing.T) {
	tables := nft.Open(nettest.Node(t))
	e := New(Options{Tables: tables, Ruleset: withPorts()})
	h := newHold(instance)
	nettest.Must(t, e.Kind().Acquire(t.Context(), h))
	bound, free, other := mapping("0.0.0.0:1000", "10.88.0.7:80"), mapping("192.0.2.1:1001", "10.88.0.7:81"), mapping("[::]:1000", "[fd88::8]:80")
	bound.Via, other.Via = 7, 8
	nettest.Must(t, e.Map("first22222", []nft.Mapping{bound, free}))
	nettest.Must(t, e.Map("second2222", []nft.Mapping{other}))
	closed := bound
	closed.Via = nft.NoLink
	want := func(when string, first, second []nft.Mapping) {
		t.Helper()
		got, err := e.read()
		nettest.Must(t, err)
		if !slices.Equal(got["first22222"], first) || !slices.Equal(got["second2222"], second) {
			t.Errorf("%s: %v", when, got)
		}
		nettest.Must(t, e.Kind().Verify(t.Context(), nil, []hold.Hold{h})[0])
	}
	for range 2 {
		nettest.Must(t, e.Close([]hold.ID{"first22222", "nobody2222"}))
		want("closed", []nft.Mapping{closed, free}, []nft.Mapping{other})
	}
	nettest.Must(t, e.SetRuleset(withPorts()))
	nettest.Must(t, tables.Delete(instance))
	nettest.Must(t, e.Kind().Acquire(t.Context(), h))
	want("written anew", []nft.Mapping{closed, free}, []nft.Mapping{other})
	nettest.Must(t, e.Map("first22222", []nft.Mapping{bound, free}))
	want("mapped again", []nft.Mapping{bound, free}, []nft.Mapping{other})
	nettest.Must(t, e.Close([]hold.ID{"first22222"}))
	nettest.Must(t, e.Unmap([]hold.ID{"first22222"}))
	want("unmapped", nil, []nft.Mapping{other})
}

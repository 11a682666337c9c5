package nft

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/berth-net/berth/internal/cidrs"
	"github.com/berth-net/berth/internal/nettest"
)

// newNode makes a world of a node, two pods, and a machine beyond the node.
func newNode(t *testing.T) (w *world, a, b, beyond *place) {
	w = newWorld(t)
	a = w.add("a", nettest.Pod(t), "10.88.0.2", "fd88::2")
	b = w.add("b", nettest.Pod(t), "10.88.0.3", "fd88::3")
	beyond = w.add("beyond", nettest.Node(t), "192.0.2.2", "2001:db8::2")
	w.address(beyond, "192.0.2.1", "2001:db8::1")
	return w, a, b, beyond
}

// A pod whose link is in a dying group neither sends nor receives, by either family and
// with any other end. All other places still send and receive, and so does the pod once its link leaves
// the group.
func TestCut(t *testing.T) {
	w, a, _, _ := newNode(t)
	r := sample()
	must(t, Open(w.node.at).Replace(r))
	everybody := func(_, _ *place) bool { return true }
	butA := func(from, to *place) bool { return from != a && to != a }
	for _, step := range []struct {
		name   string
		group  uint32
		should func(from, to *place) bool
	}{
		{"default group", 0, everybody},
		{"below", r.CutLow - 1, everybody},
		{"first", r.CutLow, butA},
		{"middle", r.CutLow + 500, butA},
		{"last", r.CutHigh, butA},
		{"above", r.CutHigh + 1, everybody},
		// Compared in little-endian byte order, these groups would be in the range.
		{"bytes swapped", 0x02000040, everybody},
	} {
		w.group(a, step.group)
		got := w.exchange(step.name, step.should)
		t.Logf("%s: %d datagrams arrived", step.name, len(got))
	}
}

// While the table is replaced again and again, no packet of a dying pod slips through.
func TestReplaceLeavesNoGap(t *testing.T) {
	w, a, b, _ := newNode(t)
	tables := Open(w.node.at)
	r := sample()
	must(t, tables.Replace(r))
	w.group(a, r.CutLow)
	replaced := make(chan error, 1)
	go func() {
		defer close(replaced)
		for range 100 {
			if err := tables.Replace(r); err != nil {
				replaced <- err
				return
			}
		}
	}()
	keys := w.sendUntil(a, b, replaced)
	w.exchange("afterwards", func(from, to *place) bool { return from != a && to != a })
	w.wantUnheard(keys)
	t.Logf("%d datagrams sent meanwhile", len(keys))
}

// The server beyond the node sees by a packet's source address whether masquerade has hidden the
// sender.
func TestMasquerade(t *testing.T) {
	for _, tt := range []struct {
		name string
		edit func(*Ruleset)
		want []string // sources seen beyond the node, of pod a: IPv4, IPv6
	}{
		{"on", func(*Ruleset) {}, []string{"192.0.2.1", "2001:db8::1"}},
		{"off", func(r *Ruleset) { r.Masquerade = false }, []string{"10.88.0.2", "fd88::2"}},
		{"excluded", func(r *Ruleset) { r.Excluded = cidrs.Of(prefixes("192.0.2.0/24", "2001:db8::/64")...) }, []string{"10.88.0.2", "fd88::2"}},
		{"IPv6 excluded", func(r *Ruleset) { r.Excluded = cidrs.Of(prefixes("192.0.3.0/24", "2001:db8::2/128")...) }, []string{"192.0.2.1", "fd88::2"}},
		{"not of the pool", func(r *Ruleset) { r.Pools = prefixes("10.88.0.3/32", "fd88::3/128") }, []string{"10.88.0.2", "fd88::2"}},
		{"20 kB excluded", func(r *Ruleset) { r.Excluded = cidrs.Of(many()...) }, []string{"192.0.2.1", "2001:db8::1"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w, a, b, beyond := newNode(t)
			r := sample()
			r.Excluded = cidrs.Set{}
			tt.edit(&r)
			must(t, Open(w.node.at).Replace(r))
			w.exchange("x", func(_, _ *place) bool { return true })
			for family := range 2 {
				for _, hop := range []struct {
					from, to *place
					want     string
				}{
					{a, beyond, tt.want[family]},
					{a, w.node, a.addrs[family].String()}, // for the host
					{w.node, a, w.node.addrs[family].String()},
					{beyond, a, beyond.addrs[family].String()},
					{w.node, beyond, w.node.addrs[family].String()},
				} {
					w.arrived(hop.from, hop.to, family, hop.want)
				}
				if tt.name != "not of the pool" { // there the pool has b and not a
					w.arrived(a, b, family, a.addrs[family].String())
					w.arrived(b, a, family, b.addrs[family].String())
				}
			}
		})
	}
}

// arrived checks with which source address a datagram of exchange "x" arrived.
func (w *world) arrived(from, to *place, family int, want string) {
	w.t.Helper()
	key := fmt.Sprintf("x: %s to %s by IPv%d at %s", from.name, to.name, []int{4, 6}[family], to.name)
	if got, ok := w.source(key); !ok || got != netip.MustParseAddr(want) {
		w.t.Errorf("%s: came from %v, want %s", key, got, want)
	}
}

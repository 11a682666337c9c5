package nft

import (
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/stamp"
)

// The table notes an address of the pools that begins a connection, or gets one, by a link that is none of the
// instance's, or that the node itself has. It notes neither pods' addresses, nor what pods begin, nor other addresses.
// A noted address stays noted until somebody clears it, and is noted anew afterwards.
func TestStrays(t *testing.T) {
	w, a, b, beyond := newNode(t)
	r := sample()
	tables := Open(w.node.at)
	must(t, tables.Replace(r))
	must(t, tables.MarkStrays(r.Instance))
	other := w.add("other", nettest.Node(t), "10.88.0.9", "fd88::9")
	w.group(a, r.Live)
	w.group(b, r.Live+1) // half-made
	w.address(beyond, "10.88.0.77", "fd88::77")
	w.node.addrs = []netip.Addr{netip.MustParseAddr("10.88.0.77"), netip.MustParseAddr("fd88::77")}
	all := slices.Concat(a.addrs, b.addrs, beyond.addrs, other.addrs, w.node.addrs)
	noted := func(when string, want ...netip.Addr) {
		t.Helper()
		got, whole, err := tables.Strays(r.Instance, all)
		must(t, err)
		if !slices.Equal(got, want) || !whole {
			t.Errorf("%s: %v are noted, want %v", when, got, want)
		}
		listed, err := tables.Noted(r.Instance)
		must(t, err)
		if len(listed) != len(want) || slices.ContainsFunc(want, func(a netip.Addr) bool { return !slices.Contains(listed, a) }) {
			t.Errorf("%s: %v are listed, want %v", when, listed, want)
		}
	}
	says := func(from, to *place) {
		t.Helper()
		for family := range 2 {
			nettest.Eventually(t, from.name+" reaches "+to.name, func() bool {
				_, ok := w.source(w.send(from, to, family, "hello"))
				return ok
			})
		}
	}
	says(a, b)
	says(b, beyond)
	says(beyond, a)
	noted("among pods and others")
	says(a, other)
	noted("to an address that another program leads elsewhere", other.addrs...)
	must(t, tables.ClearStrays(r.Instance, other.addrs))
	must(t, tables.ClearStrays(r.Instance, other.addrs))
	noted("cleared")
	says(other, a)
	noted("from such an address", other.addrs...)
	says(beyond, w.node)
	noted("to an address of the node", slices.Concat(other.addrs, w.node.addrs)...)
	must(t, tables.ClearStrays(r.Instance, w.node.addrs))
	for family, from := range w.node.addrs {
		w.inside(w.node.at, func() error {
			to := net.UDPAddrFromAddrPort(netip.AddrPortFrom(beyond.addrs[family], port))
			conn, err := net.DialUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(from, 0)), to)
			if err != nil {
				return err
			}
			defer conn.Close()
			_, err = conn.Write([]byte("hello"))
			return err
		})
	}
	noted("from an address of the node", slices.Concat(other.addrs, w.node.addrs)...)
	next := r
	next.Pools = append(slices.Clone(r.Pools), netip.MustParsePrefix("10.99.0.0/16"))
	must(t, tables.Change(r, next))
	noted("after a change of the pools", slices.Concat(other.addrs, w.node.addrs)...)
	must(t, tables.ClearStrays(r.Instance, slices.Concat(other.addrs, w.node.addrs)))
	for _, line := range []string{
		"nft add table ip others", "nft add chain ip others out { type nat hook postrouting priority 0 ; }",
		"nft add rule ip others out oifname other snat to 192.0.2.1",
	} {
		nettest.Run(t, w.node.at, line)
	}
	says(a, other)
	noted("behind another program's SNAT", other.addrs...)
}

// Whatever loses what the table has noted takes the mark, too, and so does an address that finds no room. MarkStrays
// begins anew.
func TestStraysAreLost(t *testing.T) {
	w, a, _, _ := newNode(t)
	r := sample()
	tables := Open(w.node.at)
	name := stamp.Table(r.Instance)
	other := w.add("other", nettest.Node(t), "10.88.0.9", "fd88::9")
	w.group(a, r.Live)
	whole := func(when string, want bool) {
		t.Helper()
		_, got, err := tables.Strays(r.Instance, a.addrs)
		must(t, err)
		if got != want {
			t.Errorf("%s: whole is %t", when, got)
		}
	}
	nft := func(line string) func() { return func() { nettest.Run(t, w.node.at, line) } }
	limited := r
	limited.Connections++
	whole("without a table", false)
	must(t, tables.Replace(r))
	whole("in a new table", false)
	for _, loss := range []struct {
		name string
		lose func()
	}{
		{"a flushed ruleset", nft("nft flush ruleset")},
		{"a deleted table", nft("nft delete table inet " + name)},
		{"a flushed set", nft("nft flush set inet " + name + " strays6")},
		{"a replaced table", func() { must(t, tables.Replace(r)) }},
		{"a table that Change has replaced", func() { must(t, tables.Change(r, limited)); must(t, tables.Change(limited, r)) }},
		{"a full set", func() {
			must(t, tables.fillStrays(r.Instance, room-1)) // and the mark
			nettest.Eventually(t, "a stray", func() bool { _, ok := w.source(w.send(a, other, 0, "hello")); return ok })
		}},
	} {
		must(t, tables.Replace(r))
		must(t, tables.MarkStrays(r.Instance))
		whole("before "+loss.name, true)
		loss.lose()
		whole("behind "+loss.name, false)
	}
	must(t, tables.MarkStrays(r.Instance))
	whole("a full set that is marked anew", true)
}

// fillStrays notes n addresses.
func (t *Tables) fillStrays(instance string, n int) error {
	entries := make([]entry, n)
	a := netip.MustParseAddr("10.88.64.0")
	for i := range entries {
		entries[i].key = string(a.AsSlice())
		a = a.Next()
	}
	return t.transact(func(r *request) { r.addEntries(stamp.Table(instance), 0, strays(ipv4).name, entries) })
}

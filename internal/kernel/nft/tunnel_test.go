package nft

import (
	"cmp"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/berth-net/berth/internal/cidrs"
	"github.com/berth-net/berth/internal/nettest"
)

// The node receives at the tunnel's port what other nodes send, and nothing that pods send, or others outside.
func TestTunnel(t *testing.T) {
	w, a, _, beyond := newNode(t)
	peer := w.add("peer", nettest.Node(t), "192.0.2.11", "2001:db8::11")
	w.address(beyond, "192.0.2.77", "2001:db8::77")
	r := sample()
	r.TunnelPort = port // which places listen at
	must(t, Open(w.node.at).Replace(r))
	w.group(a, r.Live)
	for family := range 2 {
		for _, from := range []*place{a, beyond} {
			w.send(from, w.node, family, "tunnelled")
		}
		last := w.send(peer, w.node, family, "tunnelled")
		nettest.Eventually(t, fmt.Sprint("the other node's by family ", family), func() bool { _, ok := w.source(last); return ok })
	}
	w.log.mu.Lock()
	defer w.log.mu.Unlock()
	for key, from := range w.log.seen {
		if from != netip.MustParseAddr("192.0.2.11") && from != netip.MustParseAddr("2001:db8::11") {
			t.Errorf("the node heard %s, from %s", key, from)
		}
	}
}

// A tunnel that knows other nodes by their keys has its port open to all.
func TestOpenTunnel(t *testing.T) {
	w, a, _, beyond := newNode(t)
	w.address(beyond, "192.0.2.77", "2001:db8::77")
	r := sample()
	r.TunnelPort, r.Tunnels = port, cidrs.Of(prefixes("0.0.0.0/0", "::/0")...)
	tables := Open(w.node.at)
	must(t, tables.Replace(r))
	_, err := tables.Verify(r)
	must(t, err)
	w.group(a, r.Live)
	for family := range 2 {
		key := w.send(beyond, w.node, family, "tunnelled")
		nettest.Eventually(t, key, func() bool { _, ok := w.source(key); return ok })
	}
}

// No pod's flow by UDP gets the tunnel's port: the other end could take another node's packets from the tunnel.
func TestMasqueradeBesideTheTunnel(t *testing.T) {
	for _, tt := range []struct {
		first, last, port uint16
		udp               string
	}{
		{0, 0, 51820, "1024-51819"},
		{0, 0, 4789, "4790-65535"},
		{20000, 51819, 51820, "20000-51819"},
		{51820, 60000, 51820, "51821-60000"},
		{40000, 51820, 51820, "40000-51819"},
		{0, 0, 0, "1024-65535"},
	} {
		r := sample()
		r.FirstPort, r.LastPort, r.TunnelPort = tt.first, tt.last, tt.port
		all := fmt.Sprintf("%d-%d", cmp.Or(tt.first, 1024), cmp.Or(tt.last, 65535))
		for protocol, want := range map[string]string{"tcp": all, "sctp": all, "udp": tt.udp} {
			found := 0
			for line := range strings.Lines(r.String()) {
				if strings.Contains(line, "meta l4proto "+protocol+" ") && strings.Contains(line, " masquerade to :"+want+" ") {
					found++
				}
			}
			if found != 2 {
				t.Errorf("%+v: %d rules give flows by %s the ports %s, want 2", tt, found, protocol, want)
			}
		}
	}
}

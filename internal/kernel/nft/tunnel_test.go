package nft

import (
	"fmt"
	"net/netip"
	"testing"

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

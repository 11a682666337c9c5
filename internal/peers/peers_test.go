package peers

import (
	"net/netip"
	"testing"
)

// A node that is as it was makes no work: with thousands of nodes, such news come all the time.
func TestPutOfTheSame(t *testing.T) {
	p := New(nil, Options{})
	node := func(cidr, address string) Node {
		return Node{Name: "n", CIDRs: []netip.Prefix{netip.MustParsePrefix(cidr)}, Addresses: []netip.Addr{netip.MustParseAddr(address)}}
	}
	for _, put := range []struct {
		does string
		node Node
		work bool
	}{
		{"is new", node("10.244.1.0/24", "192.0.2.1"), true},
		{"is as it was", node("10.244.1.0/24", "192.0.2.1"), false},
		{"has another CIDR", node("10.244.2.0/24", "192.0.2.1"), true},
		{"has another address", node("10.244.2.0/24", "192.0.2.2"), true},
		{"is as it was, again", node("10.244.2.0/24", "192.0.2.2"), false},
	} {
		p.Put(put.node)
		select {
		case <-p.wake:
			if !put.work {
				t.Errorf("Keep wakes for a node that %s", put.does)
			}
		default:
			if put.work {
				t.Errorf("Keep does not wake for a node that %s", put.does)
			}
		}
	}
}

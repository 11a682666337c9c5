package peers

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"testing"

	"github.com/berth-net/berth/internal/cidrs"
	"github.com/berth-net/berth/internal/config"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kinds/wireguard"
	"github.com/berth-net/berth/internal/ledger"
)

// owned returns the owner of a node, as the ledger has it.
func owned(n Node) hold.Owner {
	o := hold.Owner{ID: hold.NewID(), Meta: record{Sort: nodeSort, Node: n.Name, Addresses: n.Addresses}.encode(), Names: []hold.Name{Name(n.Name)}}
	for _, c := range n.CIDRs {
		o.Names = append(o.Names, cidrName(c))
	}
	if key := n.WireGuard.PublicKey; key != "" {
		o.Holds = []hold.Hold{{Owner: o.ID, Spec: &wireguard.Peer{PublicKey: key}}}
	}
	return o
}

// The view finds the nodes that the ledger has by their CIDRs and keys, whichever come, change and go, and by new owners, too.
func TestView(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	p := New(nil, Options{})
	have := map[string]hold.Owner{}
	nodes := map[string]Node{}
	for step := range 500 {
		i := r.IntN(12)
		name := fmt.Sprint("n", i)
		was, held := have[name]
		switch n := r.IntN(3); {
		case held && n == 0:
			p.Follow(ledger.Change{Owners: []ledger.Edit{{Before: &was}}})
			delete(have, name)
			delete(nodes, name)
		default:
			node := Node{
				Name: name, Addresses: []netip.Addr{netip.AddrFrom4([4]byte{192, 0, 2, byte(r.IntN(4))})},
				CIDRs:     []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i), byte(r.IntN(2) * 128), 0}), 17+r.IntN(3))},
				WireGuard: WireGuard{PublicKey: fmt.Sprint("key", i, r.IntN(2))},
			}
			now := owned(node)
			if held && n == 1 {
				now.ID = was.ID
			}
			edits := []ledger.Edit{{After: &now}}
			if held && n != 1 { // the former owner goes when the node has the new one
				edits = append(edits, ledger.Edit{Before: &was})
			}
			p.Follow(ledger.Change{Owners: edits})
			have[name], nodes[name] = now, node
		}
		var pods, all cidrs.Set
		for _, n := range nodes {
			pods, all = pods.With(n.CIDRs...), all.With(n.CIDRs...).With(hosts(n.Addresses)...)
			if other := p.view.keyOf(n.WireGuard.PublicKey); other != n.Name {
				t.Fatalf("seed %d, step %d: the key of %s is that of %q", seed, step, n.Name, other)
			}
			at := netip.PrefixFrom(n.CIDRs[0].Addr(), 28)
			if other, of := p.view.overlapping(at, "stranger"); other != n.Name || len(of) != 1 || of[0] != n.CIDRs[0] {
				t.Fatalf("seed %d, step %d: %s overlaps %v of %q, not of %s", seed, step, at, of, other, n.Name)
			}
			if other, _ := p.view.overlapping(at, n.Name); other != "" {
				t.Fatalf("seed %d, step %d: %s overlaps what %s has", seed, step, at, other)
			}
		}
		if got := p.reached(); !reflect.DeepEqual(got, all) {
			t.Fatalf("seed %d, step %d: reached are %s, not %s", seed, step, got, all)
		}
		if p.Routing = config.RoutingWireGuard; !reflect.DeepEqual(p.reached(), pods) {
			t.Fatalf("seed %d, step %d: reached are %s, not %s", seed, step, p.reached(), pods)
		}
		p.Routing = ""
		if len(p.view.names) != len(have) || len(p.view.keys) != len(have) || len(p.view.holders) != len(have) || len(p.view.list()) != len(have) {
			t.Fatalf("seed %d, step %d: of %d nodes are known %d, %d keys and %d CIDRs", seed, step, len(have), len(p.view.names), len(p.view.keys), len(p.view.holders))
		}
	}
}

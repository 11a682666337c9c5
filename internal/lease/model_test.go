package lease

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/berth-net/berth/api/v1alpha1"
	"github.com/berth-net/berth/internal/config"
)

// sim is a cluster of a few nodes, and an operator that keeps to the protocol (api/v1alpha1).
type sim struct {
	*store
	rng    *rand.Rand
	agents []*agent
	given  map[netip.Prefix]string // the pool's record: who may have a block
	log    []string
}

const simNodes, simBlocks = 3, 6

func newSim(seed uint64) *sim {
	s := &sim{store: &store{networks: map[string]*v1alpha1.NodeNetwork{}}, rng: rand.New(rand.NewPCG(seed, 1)), given: map[netip.Prefix]string{}}
	for i := range simNodes {
		n := &v1alpha1.NodeNetwork{}
		n.Name, n.UID = fmt.Sprint("n", i), "u"
		s.put(n)
		s.agents = append(s.agents, newAgent(s.store, n.Name))
	}
	return s
}

// operate does one step of the operator for a node, on its NodeNetwork as it is.
func (s *sim) operate(a *agent) {
	n := s.get(a.api.node)
	switch s.rng.IntN(3) {
	case 0: // give
		for i := range simBlocks {
			if c := block(i); s.given[c] == "" {
				s.given[c] = n.Name
				n.Spec.Blocks = append(n.Spec.Blocks, v1alpha1.Block{Pool: "blue", CIDR: c.String()})
				s.put(n)
				return
			}
		}
	case 1: // withdraw the last one
		for i := len(n.Spec.Blocks) - 1; i >= 0; i-- {
			if !n.Spec.Blocks[i].Withdrawn {
				n.Spec.Blocks[i].Withdrawn = true
				s.put(n)
				return
			}
		}
	case 2: // take out what is withdrawn and not held
		for i, b := range n.Spec.Blocks {
			held := slices.ContainsFunc(n.Status.Held, func(h v1alpha1.Block) bool { return h.CIDR == b.CIDR })
			if b.Withdrawn && !held {
				n.Spec.Blocks = slices.Delete(n.Spec.Blocks, i, i+1)
				s.put(n)
				delete(s.given, netip.MustParsePrefix(b.CIDR))
				return
			}
		}
	}
}

// show tells an agent of its NodeNetwork as it is, or as it once was.
func (s *sim) show(a *agent) {
	n := s.get(a.api.node)
	if s.rng.IntN(3) == 0 {
		var past []*v1alpha1.NodeNetwork
		for _, p := range s.past {
			if p.Name == n.Name {
				past = append(past, p)
			}
		}
		n = clone(past[s.rng.IntN(len(past))])
	}
	if s.rng.IntN(40) == 0 {
		n = nil // deleted, as far as the server's cache knows
	}
	a.Network(n)
}

func (s *sim) step() {
	a := s.agents[s.rng.IntN(len(s.agents))]
	op := s.rng.IntN(10)
	s.log = append(s.log, fmt.Sprint(a.api.node, " op ", op))
	switch op {
	case 0, 1:
		s.operate(a)
	case 2, 3:
		s.show(a)
	case 4, 5:
		*a.clock = a.clock.Add(time.Duration(s.rng.IntN(40)) * time.Second)
		a.api.silent = s.rng.IntN(5) == 0
		_ = a.look(context.Background())
		a.api.silent = false
	case 6:
		a.ledger.claim()
	case 7:
		for c, n := range a.ledger.used {
			if n > 0 {
				a.ledger.used[c]--
				break
			}
		}
	case 8:
		a.ledger.giveBack()
	case 9:
		switch s.rng.IntN(6) {
		case 0:
			a.start() // killed, and started again: it knows its ledger alone
		case 1:
			a.api.away = !a.api.away
		case 2:
			if a.ledger.fail = nil; s.rng.IntN(2) == 0 {
				a.ledger.fail = errors.New("the kernel hangs")
			}
		}
	}
}

// check fails if two nodes have a block, or if a node has one that the store does not know it holds.
func (s *sim) check(t *testing.T, seed uint64) {
	t.Helper()
	who := map[netip.Prefix]string{}
	for _, a := range s.agents {
		n := s.networks[a.api.node]
		for _, b := range a.ledger.Blocks() {
			held := slices.ContainsFunc(n.Status.Held, func(h v1alpha1.Block) bool { return h.CIDR == b.CIDR.String() })
			if other := who[b.CIDR]; other != "" || s.given[b.CIDR] != n.Name || !held {
				t.Fatalf("seed %d: %s has block %s, which is given to %q, and which %q has, too; held: %v\nlast: %v", seed, n.Name, b.CIDR, s.given[b.CIDR], other, held, s.log[max(0, len(s.log)-30):])
			}
			who[b.CIDR] = n.Name
		}
	}
}

// Nodes take blocks and give them back while agents and API server fail, answers get lost, and watches show NodeNetworks as they
// once were. No block is ever two nodes', and none is used that the API server does not know is held. Once all is well again,
// each node has what it was given.
func TestModel(t *testing.T) {
	seeds := uint64(100)
	if testing.Short() {
		seeds = 20
	}
	taken := 0
	for seed := range seeds {
		s := newSim(seed)
		for range 600 {
			s.step()
			s.check(t, seed)
		}
		for _, a := range s.agents {
			a.api.away, a.ledger.fail = false, nil
			a.Network(s.get(a.api.node))
			for range 3 {
				_ = a.look(t.Context())
				a.ledger.giveBack()
			}
			var want, have []config.Lease
			for _, b := range s.networks[a.api.node].Spec.Blocks {
				if !b.Withdrawn {
					want = append(want, config.Lease{Pool: "blue", CIDR: netip.MustParsePrefix(b.CIDR)})
				}
			}
			have = a.ledger.given.Leases
			config.Given{Leases: want}.Sort()
			if !slices.Equal(have, want) {
				t.Fatalf("seed %d: at the end %s has %v, want %v", seed, a.api.node, have, want)
			}
			taken += len(have)
		}
		s.check(t, seed)
	}
	if taken < int(seeds) {
		t.Errorf("only %d blocks were given at the end of %d runs", taken, seeds)
	}
}

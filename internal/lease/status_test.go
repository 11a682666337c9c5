package lease

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berth-net/berth/api/v1alpha1"
)

// onNode returns an agent whose NodeNetwork has blocks.
func onNode(t *testing.T, blocks ...int) *agent {
	s := &store{networks: map[string]*v1alpha1.NodeNetwork{}}
	a := newAgent(s, "me")
	n := &v1alpha1.NodeNetwork{}
	n.Name = "me"
	for _, b := range blocks {
		n.Spec.Blocks = append(n.Spec.Blocks, v1alpha1.Block{Pool: "blue", CIDR: block(b).String()})
	}
	a.Network(s.put(n))
	a.see(t)
	return a
}

// see has the agent look at its NodeNetwork as it is.
func (a *agent) see(t *testing.T) {
	t.Helper()
	a.Network(a.api.get("me"))
	if err := a.look(t.Context()); err != nil {
		t.Error(err)
	}
}

func (a *agent) requested(pool string) int {
	for _, r := range a.api.get("me").Status.Requests {
		if r.Pool == pool {
			return int(r.Addresses)
		}
	}
	return 0
}

// A node writes its need at once when the blocks do not cover it, when it has changed by half a block, or when an ADD waits,
// and otherwise twice a minute at most.
func TestRequests(t *testing.T) {
	a := onNode(t, 0, 1) // of four addresses each
	want := func(when string, addresses, writes int) {
		t.Helper()
		a.see(t)
		if have := a.requested("blue"); have != addresses || a.api.writes != writes {
			t.Errorf("%s: the node requests %d in %d writes, want %d in %d", when, have, a.api.writes, addresses, writes)
		}
	}
	want("at first", 1, 1)
	a.ledger.claim()
	want("a pod comes", 1, 1)
	a.ledger.claim()
	want("two pods have come", 3, 2)
	*a.clock = a.clock.Add(31 * time.Second)
	want("nothing happens", 3, 2)
	a.ledger.claim()
	want("another pod comes, half a minute after", 4, 3)
	for range 5 {
		a.ledger.claim()
	}
	want("the blocks are full", 9, 4)
	a.Waits("blue", "pod 1")
	a.Waits("blue", "pod 1")
	a.Waits("blue", "pod 2")
	want("two pods wait", 11, 5)
	a.Served("blue", "pod 1")
	*a.clock = a.clock.Add(31 * time.Second)
	want("one is served", 10, 6)
	*a.clock = a.clock.Add(31 * time.Second)
	want("the other has given up", 9, 7)
	a.Waits("red", "pod 3")
	a.see(t)
	if a.requested("red") != 1 {
		t.Errorf("a pod waits for an address of a pool of which the node has nothing: it requests %d", a.requested("red"))
	}
	clear(a.ledger.used)
	*a.clock = a.clock.Add(61 * time.Second)
	want("all have gone", 1, 9)
	if a.requested("red") != 0 {
		t.Error("the node requests addresses for which nobody waits")
	}
}

// In a large cluster, figures are written more seldom.
func TestFiguresInALargeCluster(t *testing.T) {
	a := onNode(t, 0)
	a.Others = func() int { return 1000 }
	a.ledger.claim()
	for _, c := range []struct {
		after time.Duration
		want  int
	}{{4 * time.Minute, 1}, {time.Minute, 2}} {
		*a.clock = a.clock.Add(c.after)
		if a.see(t); a.api.writes != c.want {
			t.Errorf("%d writes, want %d", a.api.writes, c.want)
		}
	}
}

// The NodeNetwork says which blocks the node could not take, and that it lacks what its pods need.
func TestConditions(t *testing.T) {
	a := onNode(t)
	said := func(typ string) string {
		a.see(t)
		for _, c := range a.api.get("me").Status.Conditions {
			if c.Type == typ {
				return fmt.Sprint(c.Status, " ", c.Reason, " ", c.Message)
			}
		}
		return ""
	}
	if text := said(v1alpha1.ConditionReady); !strings.HasPrefix(text, "False NoBlocks") {
		t.Errorf("Ready: %s", text)
	}
	n := a.api.get("me")
	for i := range 8 {
		n.Spec.Blocks = append(n.Spec.Blocks, v1alpha1.Block{Pool: "blue", CIDR: block(i).String()})
	}
	a.api.put(n)
	a.ledger.unfit = map[netip.Prefix]error{}
	for i := 1; i < 8; i++ {
		a.ledger.unfit[block(i)] = errors.New("it is another's")
	}
	if text := said(v1alpha1.ConditionRefused); !strings.HasPrefix(text, "True BlocksRefused 10.60.0.12/30: it is another's; ") || !strings.HasSuffix(text, "and 2 more") {
		t.Errorf("Refused: %s", text)
	}
	if text := said(v1alpha1.ConditionReady); !strings.HasPrefix(text, "True") {
		t.Errorf("Ready: %s", text)
	}
	a.ledger.unfit = nil
	if text := said(v1alpha1.ConditionRefused); !strings.HasPrefix(text, "False") || len(a.ledger.given.Leases) != 8 {
		t.Errorf("Refused: %s; the node has %v", text, a.ledger.given.Leases)
	}
}

// Blocks that an agent without its ledger has found on the node are held, if the cluster knows them, and taken anew.
func TestLostLedger(t *testing.T) {
	a := onNode(t, 0)
	a.ledger.given.Leases, a.ledger.lost = nil, []netip.Prefix{block(0), block(1), block(2)}
	n := a.api.get("me")
	n.Status.Held = append(n.Status.Held, v1alpha1.Block{Pool: "blue", CIDR: block(1).String()}) // and spec does not have it
	a.api.put(n)
	a.see(t)
	var held []string
	for _, b := range a.api.get("me").Status.Held {
		held = append(held, b.Pool+" "+b.CIDR)
	}
	if want := []string{"blue 10.60.0.0/30", "blue 10.60.0.4/30"}; !slices.Equal(held, want) {
		t.Errorf("held is %v, want %v", held, want)
	}
	if len(a.ledger.given.Leases) != 1 || a.ledger.given.Leases[0].CIDR != block(0) {
		t.Errorf("the node uses %v", a.ledger.given.Leases)
	}
}

// A pool that says nothing has half a block pre-allocated, and 16 addresses at most.
func TestPreAllocate(t *testing.T) {
	v4 := func(bits int32) v1alpha1.IPPoolSpec {
		return v1alpha1.IPPoolSpec{IPv4: &v1alpha1.Range{BlockSize: bits}}
	}
	for _, c := range []struct {
		spec v1alpha1.IPPoolSpec
		want int32
	}{
		{v4(0), 16}, {v4(27), 16}, {v4(28), 8}, {v4(31), 1}, {v4(32), 1}, {v4(8), 16}, {v4(99), 1},
		{v1alpha1.IPPoolSpec{IPv6: &v1alpha1.Range{BlockSize: 125}}, 4}, {v1alpha1.IPPoolSpec{IPv6: &v1alpha1.Range{}}, 16}, {v1alpha1.IPPoolSpec{}, 16},
	} {
		if have := halfBlock(c.spec); have != c.want {
			t.Errorf("%+v: %d, want %d", c.spec, have, c.want)
		}
	}
}

package lease

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-net/berth/api/v1alpha1"
	"github.com/berth-net/berth/internal/config"
	"github.com/berth-net/berth/internal/ground"
	"github.com/berth-net/berth/internal/ipam"
)

// mostWaiting is how many ADDs count as waiting for a pool at most: the runtime may try without end.
const mostWaiting = 1000

// Waits notes that an ADD for `who` finds no address in a pool: the node needs one more until it has served that ADD, or a minute
// is over.
func (k *Keeper) Waits(pool, who string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	w := k.waiting[pool]
	if w == nil {
		w = map[string]time.Time{}
		k.waiting[pool] = w
	}
	if _, known := w[who]; known || len(w) < mostWaiting {
		w[who] = k.Now().Add(lasting)
	}
	k.Stir()
}

// Served notes that an ADD for `who` has addresses.
func (k *Keeper) Served(pool, who string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.waiting[pool], who)
}

// waits returns how many ADDs wait, by pool.
func (k *Keeper) waits() map[string]int {
	k.mu.Lock()
	defer k.mu.Unlock()
	now, all := k.Now(), map[string]int{}
	for pool, w := range k.waiting {
		maps.DeleteFunc(w, func(_ string, until time.Time) bool { return !now.Before(until) })
		if len(w) == 0 {
			delete(k.waiting, pool)
			continue
		}
		all[pool] = len(w)
	}
	return all
}

// status returns what the agent says of the node, for a NodeNetwork.
func (k *Keeper) status(n *v1alpha1.NodeNetwork, p plan) v1alpha1.NodeNetworkStatus {
	s := v1alpha1.NodeNetworkStatus{
		Requests: []v1alpha1.Request{}, Held: held(n, p), Addresses: k.view.texts(), Pools: []v1alpha1.PoolFigures{},
		Conditions: slices.Clone(n.Status.Conditions),
	}
	standard := k.view.standard(nil)
	for _, name := range slices.Sorted(maps.Keys(p.figures)) {
		s.Pools = append(s.Pools, p.figures[name].PoolFigures)
	}
	names := slices.Concat(slices.Collect(maps.Keys(p.waits)), slices.Collect(maps.Keys(p.figures)), []string{standard})
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		need := p.figures[name].most + p.waits[name]
		if need > 0 || name == standard && name != "" {
			need += int(k.view.preAllocate(name))
		}
		if need > 0 {
			s.Requests = append(s.Requests, v1alpha1.Request{Pool: name, Addresses: count(need)})
		}
	}
	k.conditions(&s, n, p)
	return s
}

// held returns the blocks that the ledger has, and those that the node is about to take.
func held(n *v1alpha1.NodeNetwork, p plan) []v1alpha1.Block {
	known := slices.Concat(n.Spec.Blocks, n.Status.Held)
	all := []v1alpha1.Block{}
	for _, b := range p.blocks {
		h := v1alpha1.Block{Pool: b.Pool, CIDR: b.CIDR.String()}
		if b.Lost { // only the cluster knows whose it is; if it does not, the CIDR is none of its blocks
			i := slices.IndexFunc(known, func(k v1alpha1.Block) bool { return k.CIDR == h.CIDR })
			if i < 0 {
				continue
			}
			h.Pool = known[i].Pool
		}
		all = append(all, h)
	}
	for _, l := range p.fresh {
		same := func(b v1alpha1.Block) bool { return b.CIDR == l.CIDR.String() }
		all = append(slices.DeleteFunc(all, same), v1alpha1.Block{Pool: l.Pool, CIDR: l.CIDR.String()})
	}
	slices.SortFunc(all, func(a, b v1alpha1.Block) int {
		return cmp.Or(strings.Compare(a.Pool, b.Pool), strings.Compare(a.CIDR, b.CIDR))
	})
	return all
}

// figure is what a node has of a pool.
type figure struct {
	v1alpha1.PoolFigures
	most int // addresses of the family that has more in use or at rest, those in draining blocks too
	size int // addresses of the family that has fewer, without draining blocks
}

// figures returns the figures of the cluster's pools of which the node has blocks.
func (k *Keeper) figures(blocks []ground.Block) map[string]figure {
	ours := map[string]bool{}
	for _, b := range blocks {
		if !b.Lost {
			ours[b.Pool] = true
		}
	}
	all := map[string]figure{}
	for _, f := range k.Node.Figures() {
		if ours[f.Pool] {
			all[f.Pool] = figureOf(f)
		}
	}
	return all
}

func figureOf(p ipam.Figures) figure {
	type sum struct{ used, resting, size, busy float64 }
	var sums [2]sum // IPv4, IPv6
	var has [2]bool
	for _, c := range p.CIDRs {
		i := 0
		if c.CIDR.Addr().Is6() {
			i = 1
		}
		s := &sums[i]
		s.used += float64(c.Used)
		s.resting += float64(c.Resting)
		if !c.Draining {
			has[i] = true
			s.size += float64(c.Size)
			s.busy += float64(c.Used + c.Resting)
		}
	}
	out := figure{PoolFigures: v1alpha1.PoolFigures{Pool: p.Pool}}
	least := math.Inf(1)
	for i, s := range sums {
		out.most = max(out.most, int(s.used+s.resting))
		if free := s.size - s.busy; has[i] && free < least {
			least = free
			out.Used, out.Resting, out.Free = count(int(s.used)), count(int(s.resting)), count(int(min(free, math.MaxInt32)))
			out.size = int(min(s.size, math.MaxInt32))
		}
	}
	if math.IsInf(least, 1) { // all blocks drain
		out.Used, out.Resting = count(int(max(sums[0].used, sums[1].used))), count(int(max(sums[0].resting, sums[1].resting)))
	}
	return out
}

func count(n int) int32 { return int32(min(n, math.MaxInt32)) }

// where returns the node's own addresses, and texts returns them as texts.
func (v *View) where() []netip.Addr {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.addresses
}

func (v *View) texts() []string {
	texts := []string{}
	for _, a := range v.where() {
		texts = append(texts, a.String())
	}
	return texts
}

func (v *View) preAllocate(name string) int32 {
	v.mu.Lock()
	defer v.mu.Unlock()
	if p := v.pools[name]; p != nil && !p.going {
		return p.preAllocate
	}
	return 0
}

// shownRefusals is how many blocks the condition Refused names.
const shownRefusals = 5

// conditions says whether the node has what its pods need, and which blocks it could not take.
func (k *Keeper) conditions(s *v1alpha1.NodeNetworkStatus, n *v1alpha1.NodeNetwork, p plan) {
	var refusals []string
	for c, err := range p.refused {
		refusals = append(refusals, fmt.Sprintf("%s: %v", c, err))
	}
	refusals = append(refusals, p.wrong...)
	slices.Sort(refusals)
	refused := metav1.Condition{Type: v1alpha1.ConditionRefused, Status: metav1.ConditionFalse, Reason: "NothingRefused", ObservedGeneration: n.Generation}
	if len(refusals) > 0 {
		refused.Status, refused.Reason = metav1.ConditionTrue, "BlocksRefused"
		refused.Message = strings.Join(refusals[:min(len(refusals), shownRefusals)], "; ")
		if more := len(refusals) - shownRefusals; more > 0 {
			refused.Message += fmt.Sprintf("; and %d more", more)
		}
	}
	ready := metav1.Condition{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: "AgentReady", ObservedGeneration: n.Generation}
	for _, pool := range k.Node.Given().Pools() {
		if err := k.Node.Lacking(pool.Name); err != nil {
			ready.Status, ready.Reason, ready.Message = metav1.ConditionFalse, "NodeLacks", fmt.Sprintf("pool %s: %v", pool.Name, err)
		}
	}
	if ready.Status == metav1.ConditionTrue && len(p.kept)+len(p.fresh) == 0 {
		ready.Status, ready.Reason, ready.Message = metav1.ConditionFalse, "NoBlocks", "the node has no block that it may use"
	}
	k.Ready(ready.Status == metav1.ConditionTrue)
	meta.SetStatusCondition(&s.Conditions, refused)
	meta.SetStatusCondition(&s.Conditions, ready)
}

// due reports whether a status has to be written. What others act upon is written at once: blocks, addresses, conditions,
// and a need of addresses that has changed by half a block, that the node's blocks do not cover any more, or that an
// ADD waits for. Everything else waits until the last writing is half a minute old or older (figuresEvery), so that a node writes
// no more often than that, however many pods come and go.
func (k *Keeper) due(n *v1alpha1.NodeNetwork, s v1alpha1.NodeNetworkStatus, p plan) bool {
	was := n.Status
	if !slices.Equal(was.Held, s.Held) || !slices.Equal(was.Addresses, s.Addresses) || !sameConditions(was.Conditions, s.Conditions) {
		return true
	}
	if asksAnew(was.Requests, s.Requests, p) {
		return true
	}
	same := slices.Equal(was.Requests, s.Requests) && slices.Equal(was.Pools, s.Pools)
	every := min(figuresEvery*time.Duration(max(1, k.Others()/fewNodes)), figuresMost)
	return !same && k.Now().Sub(k.wrote) >= every
}

func sameConditions(a, b []metav1.Condition) bool {
	return slices.EqualFunc(a, b, func(x, y metav1.Condition) bool {
		return x.Type == y.Type && x.Status == y.Status && x.Reason == y.Reason && x.Message == y.Message
	})
}

// asksAnew reports whether a request has to be written at once.
func asksAnew(was, is []v1alpha1.Request, p plan) bool {
	old := map[string]int32{}
	for _, r := range was {
		old[r.Pool] = r.Addresses
	}
	for _, r := range is {
		before, had := old[r.Pool]
		delete(old, r.Pool)
		size := count(p.figures[r.Pool].size)
		switch {
		case !had, p.waits[r.Pool] > 0 && r.Addresses > before, before <= size && r.Addresses > size, abs(r.Addresses-before) >= half(p, r.Pool):
			return true
		}
	}
	return len(old) > 0 // pools of which the node needs nothing any more
}

// half returns half of the addresses of the pool's smallest block on the node.
func half(p plan, pool string) int32 {
	bits := 6
	for _, b := range p.blocks {
		if b.Lease == (config.Lease{Pool: pool, CIDR: b.CIDR}) {
			bits = min(bits, b.CIDR.Addr().BitLen()-b.CIDR.Bits())
		}
	}
	return max(1, int32(1)<<bits/2)
}

func abs(n int32) int32 { return max(n, -n) }

package traffic

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"time"

	"github.com/berth-net/berth/internal/engine"
	"github.com/berth-net/berth/internal/kernel"
	"github.com/berth-net/berth/internal/kernel/nft"
	"github.com/berth-net/berth/internal/kinds/link"
)

// While nobody has an address of a pool, somebody may begin a connection with it that goes past the pods: the pool's
// route is missing, another program's route goes before it, or another program's pod has the address. The table notes
// such addresses (nft.Tables.Strays). A claim asks whether its addresses are among them, and has the kernel forget their
// connections.
//
// What the table has noted can get lost, with the table or without it, and others can keep it from noting. The table shows
// that, by a mark that is gone, or because others have touched it (table.Keeper.Strays). Then
// all addresses are suspect, those that are free (ipam.IPAM.Taint) and those that are being claimed, and the agent sets
// the mark again. A kernel that lacks what host ports need notes nothing, and never has the mark: there each claim has
// the connections of its addresses forgotten.

// all are the prefixes of all addresses.
var all = [...]netip.Prefix{netip.PrefixFrom(netip.IPv4Unspecified(), 0), netip.PrefixFrom(netip.IPv6Unspecified(), 0)}

// strays returns those among claimed addresses that the table has noted, and clears what it has noted of them: what
// begins while the kernel forgets is noted anew. whole is false if the table may have lost some of them, or does not answer.
// cleared is false if the table may still clear later what it has noted.
func (t *Traffic) strays(claimed []netip.Addr) (strays []netip.Addr, whole, cleared bool, err error) {
	marks := t.marking.Load()
	type answer struct {
		found []netip.Addr
		whole bool
	}
	got, err := within(t, "strays", func() (a answer, err error) {
		a.found, a.whole, err = t.node.Table.Strays(claimed)
		return a, err
	})
	strays, cleared = t.noted(claimed, got.found), true
	if len(got.found) > 0 {
		_, unclear := within(t, "clear", func() (struct{}, error) { return struct{}{}, t.node.Table.ClearStrays(got.found) })
		cleared, err = unclear == nil, errors.Join(err, unclear)
	}
	return strays, got.whole && marks%2 == 0 && t.marking.Load() == marks, cleared, err
}

// suspect sets the mark, and then taints all addresses. While it is about that, no claim trusts the mark (marking), and
// a pass that has begun before does not end the taint.
func (t *Traffic) suspect() error {
	if !t.notes() {
		return nil
	}
	_, err := within(t, "mark", func() (none struct{}, err error) {
		t.marks.Lock()
		defer t.marks.Unlock()
		if _, whole, err := t.node.Table.Strays(nil); whole || err != nil { // another claim has set the mark
			return none, err
		}
		t.marking.Add(1)
		defer t.marking.Add(1)
		noted, err := t.node.Table.Noted() // the mark takes away what is noted of addresses in use, too, which no taint is about
		if err != nil {
			return none, err
		}
		noted = t.unsettled(noted)
		if err := t.node.Table.MarkStrays(); err != nil {
			return none, err
		}
		for _, prefix := range all {
			t.ground.Pools.Taint(prefix)
		}
		t.noted(nil, noted)
		t.remake(noted)
		return none, nil
	})
	if errors.Is(err, kernel.ErrNotFound) || errors.Is(err, kernel.ErrAgain) {
		return nil // the table is not as it should be, and the agent is about to mend it
	}
	return err
}

// unsettled returns those among addrs that are in use and not settled.
func (t *Traffic) unsettled(addrs []netip.Addr) []netip.Addr {
	now, settled := t.Clock.Now(), t.ground.Pools.Settled(addrs)
	return slices.DeleteFunc(addrs, func(a netip.Addr) bool { return slices.Contains(settled, a) || !t.ground.Pools.InUse(a, now) })
}

// longestAdd is how old an attachment is at least whose ADD has come to its end.
const longestAdd = 10 * time.Minute

// Resumed says what was missing of pods when the agent started. The addresses of pods are settled (ipam.Settle), but for those
// whose ADD may not have come to its end when the last agent did: pods that have come lately, and whose links are gone or
// half-made, or whose addresses the table has noted.
func (t *Traffic) Resumed(missing engine.Missing) {
	unmade := missing.Unmade(link.KindName)
	noted, _ := within(t, "noted", t.node.Table.Noted) // without an answer, none is known
	now := t.Boottime()
	for _, e := range t.index.All() {
		addrs := e.Interface.Addresses
		astray := slices.ContainsFunc(addrs, func(a netip.Addr) bool { return slices.Contains(noted, a) })
		if e.Owner.Wanted() && !(e.Record.YoungerThan(longestAdd, t.Boot, now) && (unmade[e.Owner.ID] || astray)) {
			t.ground.Pools.Trust(addrs, t.ground.Pools.Taints()) // the agent has tainted all pools by now
			t.ground.Pools.Settle(addrs)
		}
	}
}

// Mended says that the agent has taken again a pod's hold of a kind. With a link, the pod's addresses have their ways again,
// and others may have had ways meanwhile.
func (t *Traffic) Mended(kind string, addrs []netip.Addr) {
	if kind == link.KindName {
		t.remake(addrs)
	}
}

// remake has KeepUnbarred do for addresses in use what Unbar does at the end of an ADD.
func (t *Traffic) remake(addrs []netip.Addr) {
	if len(addrs) == 0 {
		return
	}
	t.remade.Lock()
	t.remade.addrs = append(t.remade.addrs, addrs...)
	t.remade.Unlock()
	select {
	case t.unbarred <- struct{}{}:
	default:
	}
}

// KeepUnbarred does what remake asks for, until ctx ends.
func (t *Traffic) KeepUnbarred(ctx context.Context) {
	for await(ctx, t.unbarred, 0) {
		t.remade.Lock()
		addrs := t.remade.addrs
		t.remade.addrs = nil
		t.remade.Unlock()
		t.Unbar(addrs)
	}
}

// notes reports whether the kernel has what the table needs to note strays.
func (t *Traffic) notes() bool { return t.node.Table.Lacks()&nft.HostPorts == 0 }

// mark sets the mark if it is gone. If it cannot, the next claim tries again.
func (t *Traffic) mark() {
	if _, whole, err := t.node.Table.Strays(nil); err == nil && !whole {
		_ = t.suspect()
	}
}

// noted returns those among addrs that the table notes now (found), or has noted before the kernel was last asked in vain
// to forget their connections.
func (t *Traffic) noted(addrs, found []netip.Addr) (all []netip.Addr) {
	t.astray.Lock()
	defer t.astray.Unlock()
	for _, a := range found {
		t.astray.noted[a] = true
	}
	for _, a := range addrs {
		if t.astray.noted[a] {
			all = append(all, a)
		}
	}
	return all
}

// forgot notes that the kernel has forgotten the connections of addresses.
func (t *Traffic) forgot(addrs []netip.Addr) {
	t.astray.Lock()
	defer t.astray.Unlock()
	for _, a := range addrs {
		delete(t.astray.noted, a)
	}
}

package drain

import (
	"net/netip"
	"slices"

	"github.com/berth-net/berth/internal/attachment"
	"github.com/berth-net/berth/internal/deletions"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/ledger"
	"github.com/berth-net/berth/internal/mode"
	"github.com/berth-net/berth/internal/stamp"
)

// A deletion may be about a pod that the ledger knows nothing of, since it was
// lost. What the deletion says and the stamp of the pod's link are enough: the
// agent makes an owner of them, begun and releasing in one commit, and from then
// on everything is as usual.

// adopt adds the owner that a deletion is about and that the ledger lacks: its
// link, if that is there and its alias says the same key and incarnation, and its
// addresses, unless they are somebody else's by now, or rest. Of a pod without a link
// they are adopted only if its deletion is older than all that is known here. What the
// kernel remembers of an address's traffic is forgotten for its owner alone, so that
// this cannot meet a successor; what rests is rinsed before it is given anew
// (rinse.go). If there is neither link nor address, there is nothing to delete.
//
// The caller has the turn until what it adopts is committed: of two who adopt the
// same, one would claim the addresses and the other commit.
func (d *Drain) adopt(w *work, r deletions.Record) {
	id, named := stamp.LinkID(r.Link)
	if !named {
		id = hold.NewID()
	} else if _, known := d.Ledger.Owner(id); known {
		e := d.index.Get(id) // one of this very key began later, or is meant already
		mayBe := e != nil && (e.MayBe(r.Key()) || e.Keyless() && len(d.meant(r)) == 0)
		if mayBe && e.Record.BeganBeforeDeletion(r.Boot, r.Started, d.Boot) {
			w.ids = append(w.ids, id)
		}
		return
	}
	if slices.Contains(w.adopted, id) {
		return // by an earlier deletion of the same
	}
	rec := attachment.Record{
		Key: r.Key(), Mode: d.finder.Name(), Created: d.Wall(), Made: d.Boottime(), Epoch: d.Epoch, Adopted: true,
	}
	rec.Netns.Path = r.Netns
	addrs := parseAddrs(r.Addresses)
	var seen *mode.Sight
	if named {
		var err error
		if seen, err = d.finder.Sight(r.Link, rec.Key, addrs); err != nil {
			w.errs = append(w.errs, err)
			return
		}
	}
	if seen != nil {
		addrs = seen.Addresses
	} else { // of the addresses there is only the deletion's word
		id = hold.NewID() // the link's own may be that of one who is being forgotten at this moment
		addrs = slices.DeleteFunc(addrs, func(x netip.Addr) bool { return d.pools.PoolOf(x) == "" || !d.precedes(r) })
	}
	names := d.pools.Adopt(addrs, d.Clock.Now())
	if seen == nil && len(names) == 0 {
		return
	}
	if len(addrs) > 0 {
		rec.Pool = d.pools.PoolOf(addrs[0])
	}
	o := d.finder.Adopt(id, rec, seen, names)
	w.adopted = append(w.adopted, id)
	d.adopting.Store(id, names)
	w.ids = append(w.ids, id)
	w.ops = append(w.ops, ledger.Begin(o), ledger.Releasing(id, d.Wall()))
}

// precedes reports whether a deletion began before the first agent of this ledger did: a
// former state folder is lost, and with it who had which address. A ledger that was begun
// otherwise has all who may have one, or lets all addresses rest.
func (d *Drain) precedes(r deletions.Record) bool {
	first, known := d.Ledger.First()
	switch {
	case !known:
		return false
	case r.Boot == first.Boot:
		return r.Started < first.Started
	}
	return r.Boot != d.Boot // this boot began after that of the first agent
}

// parseAddrs reads those of some texts that are addresses.
func parseAddrs(texts []string) []netip.Addr {
	var addrs []netip.Addr
	for _, t := range texts {
		if a, err := netip.ParseAddr(t); err == nil && a.Zone() == "" {
			addrs = append(addrs, a.Unmap())
		}
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	return slices.Compact(addrs)
}

// disown gives back the addresses of adopted owners that were not begun: those
// of the others have left adopting with their commit.
func (d *Drain) disown(w *work) {
	for _, id := range w.adopted {
		if names, ok := d.adopting.LoadAndDelete(id); ok {
			d.pools.Disown(names.([]netip.Addr), d.Clock.Now())
		}
	}
}

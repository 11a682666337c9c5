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

// A deletion may be about a pod that the ledger does not know, because a former ledger was
// lost. The deletion and the stamp of the pod's link say enough: the agent makes an owner
// from them. One commit begins the owner and makes it releasing. From then on the owner is
// released like any other.

// adopt adds to w the owner of a deletion, if the ledger lacks that owner. The owner gets the
// link, if the link is there and its alias says the deletion's key and the incarnation. The owner
// also gets the addresses that nobody else has by now and that do not rest. If there is no link, the
// owner gets addresses only if the deletion is older than all that this ledger knows (precedes). The
// kernel forgets an address's traffic only for the owner that has the address, so that the successor
// of a pod loses nothing. The agent rinses an address that rests before it gives the address anew
// (internal/traffic/rinse.go). If there is neither link nor address, there is nothing to delete.
//
// The caller keeps the turn until the owner is committed. Otherwise, if two callers adopted
// the same pod, one could claim the addresses and the other commit.
func (d *Drain) adopt(w *work, r deletions.Record) {
	id, named := stamp.EndID(r.Link)
	if !named {
		id = hold.NewID()
	} else if _, known := d.Ledger.Owner(id); known {
		e := d.index.Get(id) // an attachment whose key is exactly r's began later, or is in meant(r)
		mayBe := e != nil && (e.MayBe(r.Key()) || e.Keyless() && len(d.meant(r)) == 0)
		if mayBe && e.Record.BeganBeforeDeletion(r.Boot, r.Started, d.Boot) {
			w.ids = append(w.ids, id)
		}
		return
	}
	if slices.Contains(w.adopted, id) {
		return // an earlier deletion of the same pod has adopted it
	}
	rec := attachment.Record{
		Key: r.Key(), Mode: d.finder.Name(), Created: d.Wall(), Made: d.Boottime(), Epoch: d.Epoch, Adopted: true,
	}
	rec.Netns.Path = r.Netns
	addrs := parseAddrs(r.Addresses)
	var seen *mode.Sight
	if stamp.IsLink(r.Link) { // a port of a bridge is nobody's whom the ledger lacks: the sweep deletes it
		var err error
		if seen, err = d.finder.Sight(r.Link, rec.Key, addrs); err != nil {
			w.errs = append(w.errs, err)
			return
		}
	}
	if seen != nil {
		addrs = seen.Addresses
	} else { // only the deletion says which addresses the pod had
		id = hold.NewID() // the ledger may be forgetting the owner with the link's own id at this moment
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

// precedes reports whether a deletion began before the first agent of this ledger did.
// Then a former state folder is lost, and with it the record of which pod had which address.
// Any other ledger has all owners that may have an address, or lets all addresses rest.
// Nothing says which of two earlier boots came first: a deletion of a boot that is neither this
// boot nor the first agent's counts as older, since a rest of an address harms nobody.
func (d *Drain) precedes(r deletions.Record) bool {
	first, known := d.Ledger.First()
	switch {
	case !known:
		return false
	case r.Boot == first.Boot:
		return r.Started < first.Started
	}
	return r.Boot != d.Boot // this boot began after the first agent's boot
}

// parseAddrs returns the addresses among texts, sorted and each once.
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

// disown gives back the addresses of adopted owners that no commit has begun. The commit
// takes the others out of adopting (Follow).
func (d *Drain) disown(w *work) {
	for _, id := range w.adopted {
		if names, ok := d.adopting.LoadAndDelete(id); ok {
			d.pools.Disown(names.([]netip.Addr), d.Clock.Now())
		}
	}
}

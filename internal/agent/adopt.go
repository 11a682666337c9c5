package agent

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/berth-net/berth/internal/stamp"

	"github.com/berth-net/berth/internal/attachment"
	"github.com/berth-net/berth/internal/cni/netconf"
	"github.com/berth-net/berth/internal/deletions"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/kinds/link"
	"github.com/berth-net/berth/internal/ledger"
	"github.com/berth-net/berth/internal/root"
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
func (w *work) adopt(a *Agent, r deletions.Record) {
	id, named := stamp.LinkID(r.Link)
	if !named {
		id = hold.NewID()
	} else if _, known := a.ledger.Owner(id); known {
		e := a.index.get(id) // one of this very key began later, or is meant already
		mayBe := e != nil && (e.mayBe(keyOfDeletion(r)) || e.keyless() && len(a.meant(r)) == 0)
		if mayBe && e.record.BeganBeforeDeletion(r.Boot, r.Started, a.boot) {
			w.ids = append(w.ids, id)
		}
		return
	}
	if slices.Contains(w.adopted, id) {
		return // by an earlier deletion of the same
	}
	rec := attachment.Record{
		Key: keyOfDeletion(r), Mode: netconf.ModeRouted, Created: a.wall(), Made: a.boottime(), Epoch: a.epoch, Adopted: true,
	}
	rec.Netns.Path = r.Netns
	addrs := parseAddrs(r.Addresses)
	var veth *link.Spec
	if named {
		seen, err := a.sight(r.Link, rec.Key, addrs)
		if err != nil {
			w.errs = append(w.errs, err)
			return
		}
		if seen != nil {
			veth, addrs = attachment.Adopt(id, rec, *seen), seen.Addresses
		}
	}
	if veth == nil { // of the addresses there is only the deletion's word
		id = hold.NewID() // the link's own may be that of one who is being forgotten at this moment
		addrs = slices.DeleteFunc(addrs, func(x netip.Addr) bool { return a.ipam.PoolOf(x) == "" || !a.precedes(r) })
	}
	names := a.ipam.Adopt(addrs, a.clock.Now())
	if veth == nil && len(names) == 0 {
		return
	}
	if len(addrs) > 0 {
		rec.Pool = a.ipam.PoolOf(addrs[0])
	}
	o := attachment.Owner(id, rec, veth, names, names)
	w.adopted = append(w.adopted, id)
	a.adopting.Store(id, names)
	w.ids = append(w.ids, id)
	w.ops = append(w.ops, ledger.Begin(o), ledger.Releasing(id, a.wall()))
}

// precedes reports whether a deletion began before the first agent of this state folder
// did: a former folder is lost, and with it who had which address. A ledger that is there
// has all who may have one, and one that was lost lets all rest.
func (a *Agent) precedes(r deletions.Record) bool {
	return a.first && (r.Boot != a.boot || r.Started < a.born)
}

// sight looks at the link that a deletion names; nil: it is not there, or not that
// attachment's, or of another agent that lives, and then it is left alone. One of an
// instance that nobody serves may be that of this node's former agent.
func (a *Agent) sight(name string, k attachment.Key, addrs []netip.Addr) (*attachment.Sight, error) {
	l, err := a.conn.Link(name)
	if errors.Is(err, kernel.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("looking at the link of %s: %w", k, err)
	}
	if err := stamp.Check(name, l.Alias, k); err != nil {
		a.Log.Warn("a deletion names a link that is not its own, which is left alone", "key", k, "err", err)
		return nil, nil
	}
	if s, _ := stamp.Parse(l.Alias); s.Instance != a.instance && held(root.Lock(s.Instance, a.self.Ino)) {
		a.Log.Warn("a deletion names a link of another agent's, which is left alone", "key", k, "link", name, "instance", s.Instance)
		return nil, nil
	}
	routes, err := a.conn.Routes(rtnl.RouteFilter{Index: l.Index})
	if err != nil {
		return nil, fmt.Errorf("looking for the addresses of %s: %w", k, err)
	}
	return &attachment.Sight{Name: name, Alias: l.Alias, MTU: l.MTU, Addresses: once(append(hosts(routes), addrs...))}, nil
}

// hosts returns the single addresses that routes lead to.
func hosts(routes []rtnl.Route) []netip.Addr {
	var addrs []netip.Addr
	for _, r := range routes {
		if r.Dst.IsSingleIP() {
			addrs = append(addrs, r.Dst.Addr())
		}
	}
	return addrs
}

// once returns addresses sorted, and each once.
func once(addrs []netip.Addr) []netip.Addr {
	slices.SortFunc(addrs, netip.Addr.Compare)
	return slices.Compact(addrs)
}

// parseAddrs reads those of some texts that are addresses.
func parseAddrs(texts []string) []netip.Addr {
	var addrs []netip.Addr
	for _, t := range texts {
		if a, err := netip.ParseAddr(t); err == nil && a.Zone() == "" {
			addrs = append(addrs, a.Unmap())
		}
	}
	return once(addrs)
}

// disown gives back the addresses of adopted owners that were not begun: those
// of the others have left adopting with their commit.
func (a *Agent) disown(w *work) {
	for _, id := range w.adopted {
		if names, ok := a.adopting.LoadAndDelete(id); ok {
			a.ipam.Disown(names.([]netip.Addr), a.clock.Now())
		}
	}
}

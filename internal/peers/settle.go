package peers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/berth-net/berth/internal/config"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kinds/noderoute"
	"github.com/berth-net/berth/internal/kinds/wireguard"
	"github.com/berth-net/berth/internal/stamp"
)

// settle does what is to be done for this node's tunnel, and for all nodes that are dirty. Nodes that are gone, and CIDRs that
// a node has no more, go first, because others may have come to have them.
func (p *Peers) settle(ctx context.Context) {
	p.askAnew()
	p.restore(ctx)
	due := p.due()
	changed := false
	for _, name := range due {
		changed = p.part(ctx, name) || changed
	}
	t, renewed := p.keepTunnel(ctx)
	for _, name := range due {
		if ctx.Err() != nil {
			return
		}
		did, err := p.one(ctx, name, t)
		changed = changed || did
		p.mu.Lock()
		was := p.failed[name]
		if delete(p.failed, name); err != nil {
			p.failed[name] = err
		}
		p.mu.Unlock()
		if err != nil && (was == nil || was.Error() != err.Error()) {
			p.Log.Warn("pods of another node may not be reached: the agent tries again", "node", name, "err", err)
		}
	}
	p.leaveTunnel(ctx, t)
	p.tell(ctx)
	if (changed || renewed) && p.Changed != nil {
		p.Changed(ctx)
	}
}

// askAnew has the kernel ask who has the addresses of nodes that have booted.
func (p *Peers) askAnew() {
	p.mu.Lock()
	moved := p.moved
	p.moved = nil
	p.mu.Unlock()
	if len(moved) == 0 {
		return
	}
	if err := p.Ask(moved); err != nil {
		p.Log.Warn("nodes that have booted with other network cards may be out of reach for a minute", "err", err)
	}
}

// restore puts the ways right that the node may have lost, if somebody has asked to Look.
func (p *Peers) restore(ctx context.Context) {
	p.mu.Lock()
	shaken := p.shaken
	p.shaken = false
	p.mu.Unlock()
	if !shaken {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, holding)
	defer cancel()
	var ids []hold.ID
	for _, o := range p.view.list() {
		ids = append(ids, o.id)
	}
	if err := p.Engine.RepairSoon(ctx, ids...); err != nil {
		p.Log.Warn("pods of other nodes may not be reached until the sweep has put the ways to them right", "err", err)
	}
}

// due returns the nodes that are dirty, those first that are gone and the others by name, and takes them for clean.
func (p *Peers) due() (names []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.anew {
		for name := range p.view.list() {
			p.dirty[name] = true
		}
	}
	gone := map[bool][]string{}
	for name := range p.dirty {
		_, wanted := p.want[name]
		gone[!wanted] = append(gone[!wanted], name)
	}
	p.anew = false
	clear(p.dirty)
	slices.Sort(gone[false]) // so that all agents that hear of two nodes with one key or CIDR at once choose the same one
	return append(gone[true], gone[false]...)
}

// part takes from a node the CIDRs that it has no more. If that fails, one tries again. did says that the ledger has
// changed.
func (p *Peers) part(ctx context.Context, name string) (did bool) {
	p.mu.Lock()
	n, wanted := p.want[name]
	p.mu.Unlock()
	o, held := p.view.node(name)
	gone := func(c netip.Prefix) bool { return !slices.Contains(n.CIDRs, c) }
	if !wanted || !held || !slices.ContainsFunc(o.cidrs, gone) {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, holding)
	defer cancel()
	now, _ := p.Ledger.Owner(o.id)
	less := now.Clone()
	less.Names = slices.DeleteFunc(less.Names, func(name hold.Name) bool {
		return slices.ContainsFunc(o.cidrs, func(c netip.Prefix) bool { return gone(c) && cidrName(c) == name })
	})
	less.Holds = slices.DeleteFunc(less.Holds, func(h hold.Hold) bool {
		route, ok := h.Spec.(*noderoute.Spec)
		return ok && gone(route.CIDR)
	})
	for i, h := range less.Holds { // otherwise the former peer and the next one would take the CIDR from each other, sweep by sweep
		if peer, ok := h.Spec.(*wireguard.Peer); ok {
			rest := *peer
			rest.AllowedIPs = slices.DeleteFunc(slices.Clone(peer.AllowedIPs), gone)
			less.Holds[i].Spec = &rest
		}
	}
	err := p.change(ctx, less)
	if err != nil && o.key != "" { // such as without a device, which has nobody's CIDRs either
		less.Needs, less.Holds = nil, slices.DeleteFunc(less.Holds, func(h hold.Hold) bool { return !closes(h) })
		_ = p.change(ctx, less) // if that fails, too, others wait for the CIDRs
	}
	return true
}

// change gives an owner what next has, and waits until what the owner loses is free.
func (p *Peers) change(ctx context.Context, next hold.Owner) error {
	gone, err := p.Engine.Change(ctx, next.ID, func(o *hold.Owner) error {
		o.Meta, o.Names, o.Needs, o.Holds = next.Meta, next.Names, next.Needs, next.Holds
		return nil
	})
	if err != nil || gone == "" {
		return err
	}
	return p.Engine.Wait(ctx, gone)
}

// holding is how long one step for a node may take.
const holding = 5 * time.Second

// one makes the ledger and the node agree with what Peers was told of a node. did says that the ledger has changed.
func (p *Peers) one(ctx context.Context, name string, t tunnel) (did bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, holding)
	defer cancel()
	p.mu.Lock()
	n, wanted := p.want[name]
	told := wanted || p.all // else nobody has said that the node is gone
	p.mu.Unlock()
	o, held := p.view.node(name)
	switch {
	case !told && held && o.clear && p.Routing == config.RoutingWireGuard: // nobody need say that nothing may go in clear
		return p.shut(ctx, name, p.closed(o.id, Node{Name: name, CIDRs: o.cidrs, Addresses: o.addresses}))
	case !told || !wanted && !held:
		return false, nil
	case !wanted:
		return true, p.Engine.Release(ctx, []hold.ID{o.id})
	}
	if !held {
		o.id = hold.NewID()
	}
	seals := p.Routing == config.RoutingWireGuard
	free, taken := p.free(n)
	if taken != nil && !seals {
		return false, taken
	}
	if seals && (held || len(free) > 0) {
		rest := n
		rest.CIDRs = free
		if did, err = p.shut(ctx, name, p.closed(o.id, rest)); err != nil {
			return did, errors.Join(taken, err)
		}
	}
	if taken != nil {
		return did, taken
	}
	next, lacks := p.owner(o.id, n, t, p.tunnels(n, o))
	if seals || t.former {
		next.Holds = append(p.closed(o.id, n).Holds, next.Holds...)
	}
	if lacks != nil && len(next.Holds) == 0 {
		return did, lacks
	}
	switch now, held := p.Ledger.Owner(o.id); {
	case !held:
		err = p.take(ctx, next)
	case same(now, next):
		return did, lacks
	default:
		err = p.change(ctx, next)
	}
	return true, errors.Join(err, lacks)
}

// closed returns a node's owner with nothing but the routes by which packets for its pods go nowhere.
func (p *Peers) closed(id hold.ID, n Node) hold.Owner {
	o := p.nobody(id, n)
	for _, c := range n.CIDRs {
		o.Holds = append(o.Holds, hold.Hold{Owner: id, Spec: &noderoute.Spec{CIDR: c, Metric: stamp.Beneath(p.Metric), Closed: true}})
	}
	return o
}

// closes reports whether a hold is a route by which packets go nowhere.
func closes(h hold.Hold) bool {
	route, ok := h.Spec.(*noderoute.Spec)
	return ok && route.Closed
}

// shut takes a node's closed owner, or changes the owner that the node has into it, in a step of its own: what leads to the node can
// fail afterwards, and what the engine then goes back to sends nothing in clear. Encrypted ways that the node has stay.
func (p *Peers) shut(ctx context.Context, name string, closed hold.Owner) (did bool, err error) {
	known, _ := p.view.node(name)
	now, held := p.Ledger.Owner(closed.ID)
	if held && known.key != "" {
		closed.Needs = now.Needs
		for _, h := range now.Holds {
			if !closes(h) {
				closed.Holds = append(closed.Holds, h)
			}
		}
	}
	for _, h := range now.Holds {
		if closes(h) && !slices.ContainsFunc(closed.Holds, func(c hold.Hold) bool { return c.Spec.String() == h.Spec.String() }) {
			closed.Holds = append(closed.Holds, h) // part takes it, or nobody
		}
	}
	for _, n := range now.Names {
		if !slices.Contains(closed.Names, n) {
			closed.Names = append(closed.Names, n)
		}
	}
	switch {
	case !held:
		err = p.take(ctx, closed)
	case has(now, closed) && !known.clear:
		return false, nil
	default:
		err = p.change(ctx, closed)
	}
	return true, err
}

// has reports whether an owner has all names and holds of another one.
func has(o, of hold.Owner) bool {
	return !slices.ContainsFunc(of.Names, func(n hold.Name) bool { return !slices.Contains(o.Names, n) }) &&
		!slices.ContainsFunc(of.Holds, func(h hold.Hold) bool {
			return !slices.ContainsFunc(o.Holds, func(own hold.Hold) bool { return own.Spec.String() == h.Spec.String() })
		})
}

// take takes an owner. First it waits until former owners of its names are released.
func (p *Peers) take(ctx context.Context, o hold.Owner) error {
	for _, name := range o.Names {
		if id, held := p.Ledger.Holder(name); held {
			if err := p.Engine.Wait(ctx, id); err != nil {
				return fmt.Errorf("waiting until the former owner of %s is released: %w", name, err)
			}
		}
	}
	return p.Engine.Take(ctx, o)
}

// owner returns a node's owner, with the holds that lead to the node's pods: through the tunnel t if tunnels is set. If there is an
// error, the owner has the ways that there can be nevertheless, such as those of one family.
func (p *Peers) owner(id hold.ID, n Node, t tunnel, tunnels bool) (o hold.Owner, err error) {
	o = p.nobody(id, n)
	var specs []hold.Spec
	if tunnels {
		specs, err = p.through(n, t)
	} else {
		specs, err = p.natively(n)
	}
	if tunnels && len(specs) > 0 {
		o.Needs = []hold.ID{t.id}
	}
	for _, s := range specs {
		o.Holds = append(o.Holds, hold.Hold{Owner: id, Spec: s})
	}
	return o, err
}

// nobody returns a node's owner without holds.
func (p *Peers) nobody(id hold.ID, n Node) hold.Owner {
	o := hold.Owner{ID: id, Meta: record{Sort: nodeSort, Node: n.Name, Addresses: n.Addresses}.encode(), Names: []hold.Name{Name(n.Name)}}
	for _, c := range n.CIDRs {
		o.Names = append(o.Names, cidrName(c))
	}
	return o
}

// natively returns the routes to a node's pods by the node's addresses, and an error about those that there cannot be.
func (p *Peers) natively(n Node) (specs []hold.Spec, err error) {
	for _, c := range n.CIDRs {
		gateway, failed := n.gateway(c)
		if failed != nil {
			err = errors.Join(err, failed)
			continue
		}
		specs = append(specs, &noderoute.Spec{CIDR: c, Via: gateway, Metric: p.Metric})
	}
	return specs, err
}

// gateway returns the address by which packets to a CIDR of the node's pods reach the node without a tunnel.
func (n Node) gateway(c netip.Prefix) (netip.Addr, error) {
	i := slices.IndexFunc(n.Addresses, func(a netip.Addr) bool { return a.Is4() == c.Addr().Is4() })
	if i < 0 {
		return netip.Addr{}, fmt.Errorf("the node has no address of the family of its pods' CIDR %s", c)
	}
	return n.Addresses[i], nil
}

func (r record) encode() []byte {
	b, err := json.Marshal(r)
	if err != nil {
		panic(fmt.Sprintf("peers: encoding a record: %v", err)) // cannot happen: a record has only strings and addresses
	}
	return b
}

// same reports whether two owners have the same names, needs, holds and meta.
func same(a, b hold.Owner) bool {
	text := func(o hold.Owner) string {
		specs := make([]string, len(o.Holds))
		for i, h := range o.Holds {
			specs[i] = h.Spec.String()
		}
		slices.Sort(specs) // a change appends what the owner gains
		return fmt.Sprint(o.Names, o.Needs, specs, string(o.Meta))
	}
	return text(a) == text(b)
}

// free returns those of n's CIDRs that nobody else has, and an error about the others.
func (p *Peers) free(n Node) (free []netip.Prefix, err error) {
	for _, c := range n.CIDRs {
		if taken := p.taken(n, c); taken != nil {
			err = errors.Join(err, taken)
		} else {
			free = append(free, c)
		}
	}
	return free, err
}

// taken returns an error if a CIDR of n's pods has addresses of this node, of n itself, or of others' pods. Third nodes' addresses do
// not count: any node could take the way to another one's pods, by calling itself an address of them.
func (p *Peers) taken(n Node, c netip.Prefix) error {
	for _, own := range p.Own() {
		if own.Overlaps(c) {
			return fmt.Errorf("the CIDR %s of its pods overlaps this node's %s", c, own)
		}
	}
	p.mu.Lock()
	self := p.self
	p.mu.Unlock()
	if i := slices.IndexFunc(self.Addresses, c.Contains); i >= 0 {
		return fmt.Errorf("the CIDR %s of its pods has this node's address %s", c, self.Addresses[i])
	}
	if i := slices.IndexFunc(n.Addresses, c.Contains); i >= 0 {
		return fmt.Errorf("the CIDR %s of its pods has the node's own address %s", c, n.Addresses[i])
	}
	if other, cidrs := p.view.overlapping(c, n.Name); other != "" {
		return fmt.Errorf("the CIDR %s of its pods overlaps those of node %s: %v", c, other, cidrs)
	}
	return nil
}

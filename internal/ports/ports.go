// Package ports knows which owner has which port of the node. It is a view on the ledger, where each of
// these ports is a name. The view knows what names alone cannot say: a port of all addresses and the
// same port of one address exclude each other. It also keeps the ports that an ADD has claimed until
// the ledger has them.
package ports

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/berth-net/berth/internal/attachment"
	"github.com/berth-net/berth/internal/cni"
	"github.com/berth-net/berth/internal/daemon"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel/nft"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/kinds/hostports"
	"github.com/berth-net/berth/internal/ledger"
	"github.com/berth-net/berth/internal/patience"
)

// Ports are the host ports of a node's pods.
type Ports struct {
	*daemon.Core
	index  *attachment.Index
	ground Ground
	node   Node

	mu     sync.Mutex
	has    map[port]map[netip.Addr]hold.ID // by the addresses of the node; the unspecified address stands for all addresses
	adding map[hold.ID]bool                // owners that have claimed ports and are not in the ledger yet
	freed  chan struct{}                   // closed when ports are freed next

	// Astray is told of host ports that have led to addresses of this agent's pods by mistake. It is set before the first ADD.
	Astray func([]nft.Mapping)

	clearing patience.Calls                      // ClearLeft
	theirs   atomic.Pointer[map[netip.Addr]bool] // addresses of this agent's pools to which other agents' ports lead; nil: nobody has looked
}

// port is a port of one family.
type port struct {
	protocol string
	number   uint16
	six      bool
}

// Node is what the view asks of the node (node.Node), and changes there.
type Node interface {
	// OtherPorts returns the host ports of the node's other agents, by the names of their tables.
	OtherPorts() (map[string][]nft.Port, error)
	UnmapOther(instance string, gone []nft.Port, whole bool) error
	LinksOf(instance string) ([]rtnl.Link, error)
}

// Ground is what the view asks of the agent's configuration (ground.Ground).
type Ground interface {
	PoolOf(netip.Addr) string // the pool that has an address; "": none
	// MasqueradePorts returns the first and the last port that masquerade gives to connections; on is
	// false if it gives none.
	MasqueradePorts() (first, last uint16, on bool)
}

// New returns a view that knows no port yet.
func New(d *daemon.Core, x *attachment.Index, g Ground, n Node) *Ports {
	return &Ports{
		Core: d, index: x, ground: g, node: n,
		has: map[port]map[netip.Addr]hold.ID{}, adding: map[hold.ID]bool{}, freed: make(chan struct{}), Astray: func([]nft.Mapping) {},
	}
}

// formerHolder is how long Claim waits until an owner that is being released has given up a port.
// The release takes a tenth of a second where nothing is broken.
const formerHolder = 3 * time.Second

// Claim claims ports of the node for an owner that is not in the ledger yet. If an owner that is
// being released has one of these ports, Claim waits until that owner is gone: a pod that replaces
// another pod comes right behind the other pod's DEL. Claim does not wait for what that owner owes.
// undo gives the ports back, if the ledger refuses the new owner.
func (p *Ports) Claim(ctx context.Context, id hold.ID, want []nft.Mapping) (undo func(), err error) {
	if err := p.elsewhere(want); err != nil {
		return nil, err
	}
	waiting, cancel := context.WithTimeout(ctx, formerHolder)
	defer cancel()
	for {
		r, err := p.claim(id, want)
		if err != nil {
			return nil, err
		}
		if r == nil {
			return func() { p.unclaim(id, want) }, nil
		}
		o, known := p.Ledger.Owner(r.owner)
		if known && o.Wanted() || r.adding && !known {
			return nil, cni.Errorf(cni.CodeTaken, "host port not available", "%s: %s has it", show(r.port), p.whose(r.owner))
		}
		if !known { // the ledger has just forgotten the owner, and is about to tell Follow
			select {
			case <-r.freed:
			case <-waiting.Done():
			}
			err = waiting.Err()
		} else if err = p.Engine.Tried(waiting, r.owner); err == nil {
			_, known = p.Ledger.Owner(r.owner)
		}
		if err != nil || known {
			return nil, cni.Errorf(cni.CodeTryAgain, "host port not available",
				"%s: %s has it, and its release has not ended (berth owed): %v", show(r.port), p.whose(r.owner), err)
		}
	}
}

// Vacate waits until no port of the node leads to an address by an owner that is being released, or refuses the address: other
// plugins' IPAM gives an address away as soon as its pod is gone. It does not wait for what such an owner owes.
func (p *Ports) Vacate(ctx context.Context, addrs []netip.Addr) error {
	ctx, cancel := context.WithTimeout(ctx, formerHolder)
	defer cancel()
	for _, o := range p.Ledger.Owners() {
		leads := slices.IndexFunc(mappings(o), func(m nft.Mapping) bool { return slices.Contains(addrs, m.Pod.Addr()) })
		if leads < 0 {
			continue
		}
		m := mappings(o)[leads]
		if o.Wanted() {
			return cni.Errorf(cni.CodeTaken, "the address has another pod's host ports", "%s leads to %s: %s has it", show(m), m.Pod.Addr(), p.whose(o.ID))
		}
		err := p.Engine.Tried(ctx, o.ID)
		if _, known := p.Ledger.Owner(o.ID); known {
			return cni.Errorf(cni.CodeTryAgain, "the address has another pod's host ports",
				"%s leads to %s: %s has it, and its release has not ended (berth owed): %v", show(m), m.Pod.Addr(), p.whose(o.ID), err)
		}
	}
	return nil
}

// elsewhere refuses ports that another agent of the node maps, whether or not that agent runs: if two
// tables map a port, the kernel may use either.
func (p *Ports) elsewhere(want []nft.Mapping) error {
	if len(want) == 0 {
		return nil
	}
	all, err := p.node.OtherPorts()
	if err != nil {
		return fmt.Errorf("looking for other agents' host ports: %w", err)
	}
	wanted := map[port][]nft.Mapping{}
	for _, m := range want {
		wanted[portOf(m)] = append(wanted[portOf(m)], m)
	}
	for table, theirs := range all {
		for _, has := range theirs {
			for _, m := range wanted[portOf(has.Mapping)] {
				if exclude(has.Host.Addr(), m.Host.Addr()) {
					return cni.Errorf(cni.CodeTaken, "host port not available",
						"%s: attachment %s of another agent has it (nftables table inet %s)", show(m), has.Owner, table)
				}
			}
		}
	}
	return nil
}

// exclude reports whether one pod with a port of address `a` keeps other pods from the same port of
// address `b`.
func exclude(a, b netip.Addr) bool { return a == b || a.IsUnspecified() || b.IsUnspecified() }

// rival is another owner that has a port which a claim is about.
type rival struct {
	port   nft.Mapping
	owner  hold.ID
	adding bool            // it is not in the ledger yet
	freed  <-chan struct{} // closed when ports are freed next
}

// claim takes all of the ports, or none: then it returns an owner that has one of them, or says
// that masquerade needs them.
func (p *Ports) claim(id hold.ID, want []nft.Mapping) (*rival, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, m := range want {
		if by := p.excludes(id, m); by != "" {
			return &rival{m, by, p.adding[by], p.freed}, nil
		}
	}
	if err := p.leaveMasquerade(want); err != nil {
		return nil, err
	}
	for _, m := range want {
		p.put(id, m)
	}
	p.adding[id] = true
	return nil, nil
}

// leaveMasquerade refuses ports with which more than a quarter of masquerade's ports would be host
// ports, in one protocol and one family: the first packet of a connection to which masquerade gives such
// a port is dropped. If all of masquerade's ports were host ports, no pod would reach the world. The
// caller holds p.mu.
func (p *Ports) leaveMasquerade(want []nft.Mapping) error {
	if len(want) == 0 {
		return nil
	}
	first, last, on := p.ground.MasqueradePorts()
	if !on {
		return nil
	}
	type sort struct {
		protocol string
		six      bool
	}
	mapped, more := map[sort]int{}, map[port]nft.Mapping{}
	for _, m := range want {
		if at := portOf(m); first <= at.number && at.number <= last && p.has[at] == nil {
			more[at] = m
		}
	}
	all := int(last) - int(first) + 1
	if len(more) == 0 || len(p.has)+len(more) <= all/4 { // mostly: counting thousands of ports takes long
		return nil
	}
	for at := range p.has {
		if first <= at.number && at.number <= last {
			mapped[sort{at.protocol, at.six}]++
		}
	}
	for at, m := range more {
		s := sort{at.protocol, at.six}
		if mapped[s]++; mapped[s] > all/4 {
			return cni.Errorf(cni.CodeTaken, "host port not available",
				"%s: host ports have a quarter of the %d ports %d-%d by which pods reach the world (masquerade.ports), and may not have more", show(m), all, first, last)
		}
	}
	return nil
}

// unclaim gives back the ports that an owner has claimed, if the owner is not in the ledger.
func (p *Ports) unclaim(id hold.ID, want []nft.Mapping) {
	p.mu.Lock()
	delete(p.adding, id)
	p.mu.Unlock()
	p.free(id, want)
}

// excludes returns another owner whose port keeps the owner `id` from getting the port of m, or "". The
// caller holds p.mu.
func (p *Ports) excludes(id hold.ID, m nft.Mapping) hold.ID {
	for addr, by := range p.has[portOf(m)] {
		if by != id && exclude(addr, m.Host.Addr()) {
			return by
		}
	}
	return ""
}

// put notes a port of an owner. The caller holds p.mu.
func (p *Ports) put(id hold.ID, m nft.Mapping) {
	at := portOf(m)
	if p.has[at] == nil {
		p.has[at] = map[netip.Addr]hold.ID{}
	}
	p.has[at][m.Host.Addr()] = id
}

// free forgets ports of an owner.
func (p *Ports) free(id hold.ID, ms []nft.Mapping) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, m := range ms {
		at := portOf(m)
		if p.has[at][m.Host.Addr()] == id {
			delete(p.has[at], m.Host.Addr())
		}
		if len(p.has[at]) == 0 {
			delete(p.has, at)
		}
	}
	if len(ms) > 0 {
		close(p.freed)
		p.freed = make(chan struct{})
	}
}

func portOf(m nft.Mapping) port { return port{m.Protocol, m.Host.Port(), m.Host.Addr().Is6()} }

// whose tells people who an owner is.
func (p *Ports) whose(id hold.ID) string {
	e := p.index.Get(id)
	switch {
	case e == nil:
		return "an ADD that is under way"
	case e.Record.Pod != nil && e.Record.Pod.Name != "":
		return fmt.Sprintf("pod %s/%s (attachment %s)", e.Record.Pod.Namespace, e.Record.Pod.Name, id)
	}
	return fmt.Sprintf("attachment %s (%s)", id, e.Record.Key)
}

// show shows a mapping's port of the node.
func show(m nft.Mapping) string { return m.Protocol + " " + m.Host.String() }

// Follow keeps the view in step with the ledger's commits. The ledger calls it while all other
// commits wait, several times for each owner, and few of these calls are about a change of names.
func (p *Ports) Follow(c ledger.Change) {
	for _, edit := range c.Owners {
		switch {
		case edit.After == nil:
			p.free(edit.Before.ID, names(*edit.Before))
		case edit.Before == nil:
			p.add(*edit.After)
		case !slices.Equal(edit.Before.Names, edit.After.Names):
			p.free(edit.Before.ID, without(names(*edit.Before), names(*edit.After)))
			p.add(*edit.After)
		}
	}
}

// without returns the ports of a that are not in b.
func without(a, b []nft.Mapping) []nft.Mapping {
	in := make(map[nft.Mapping]bool, len(b))
	for _, m := range b {
		in[m] = true
	}
	return slices.DeleteFunc(a, func(m nft.Mapping) bool { return in[m] })
}

// Restore fills the view from the ledger.
func (p *Ports) Restore(owners []hold.Owner) {
	for _, o := range owners {
		p.add(o)
	}
}

func (p *Ports) add(o hold.Owner) {
	ms := names(o)
	if len(ms) == 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, m := range ms {
		p.put(o.ID, m)
	}
	delete(p.adding, o.ID)
}

// names returns an owner's ports of the node, without the pod's ports to which these lead.
func names(o hold.Owner) []nft.Mapping {
	var ms []nft.Mapping
	for _, n := range o.NamesIn(hostports.Space) {
		protocol, host, _ := strings.Cut(n, "/")
		if at, err := netip.ParseAddrPort(host); err == nil {
			ms = append(ms, nft.Mapping{Protocol: protocol, Host: at})
		}
	}
	return ms
}

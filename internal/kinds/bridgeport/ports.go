package bridgeport

import (
	"context"
	"fmt"
	"sync"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/kinds/inside"
	"github.com/berth-net/berth/internal/stamp"
)

// Options of New.
type Options struct {
	Conn     *rtnl.Conn // to the node's network namespace, which has the bridges
	At       *ns.Netns  // the node's network namespace
	Instance string
	// Since returns when the last ADD began that the agent answered with an owner's port
	// (CLOCK_BOOTTIME in nanoseconds); 0: the ADD in the port's spec. nil: always 0.
	Since func(hold.ID) int64
	// Going reports whether somebody has asked for an owner's release in a way that the ledger does not know of
	// yet. Such an owner's new port stays down. If Going cannot tell, it returns why, and the port stays
	// down as well. nil: nobody has.
	Going func(hold.ID) (bool, error)
}

// Ports makes, checks, cuts off and deletes the ports of an instance's pods.
type Ports struct {
	Options
	lingering inside.Lingering
	mu        sync.Mutex
	indices   map[string]int  // at which this agent has last seen ports, by their names
	unsettled map[string]bool // names of ports whose pods may not use their addresses yet
	furnished map[string]int  // indices of ports whose pods had all addresses that came later, by the ports' names
	listed    bool            // this Ports has listed all links at least once
}

// New returns the ports of an instance.
func New(o Options) *Ports {
	if o.Since == nil {
		o.Since = func(hold.ID) int64 { return 0 }
	}
	if o.Going == nil {
		o.Going = func(hold.ID) (bool, error) { return false, nil }
	}
	return &Ports{Options: o, indices: map[string]int{}, unsettled: map[string]bool{}, furnished: map[string]int{}}
}

// Kind returns the kind of these ports.
func (p *Ports) Kind() hold.Kind {
	return hold.Kind{
		Stage:   hold.Use,
		New:     func() hold.Spec { return new(Spec) },
		Acquire: p.acquire,
		Settle:  p.settle,
		Verify:  hold.VerifyEach(p.verify),
		Release: hold.Each(p.release),
		Cut:     p.cut,
		Find:    p.find,
	}
}

// spec returns a hold's spec. It refuses a spec whose name and alias do not name the hold's owner: such a port belongs to somebody else. The
// instance may be another one than the agent's, because an agent that lost its instance has got a new one.
func (p *Ports) spec(h hold.Hold) (*Spec, error) {
	s, ok := specIn(h)
	if !ok {
		return nil, fmt.Errorf("a hold of kind %s is not a bridge port", h.Spec.Kind())
	}
	if of, ok := stamp.ParsePort(s.Alias); !ok || of.ID != h.Owner || of.Link() != s.Name {
		return nil, fmt.Errorf("bridge port %s with the alias %.300q does not belong to %s", s.Name, s.Alias, h.Owner)
	}
	return s, nil
}

// specIn returns the port that a hold is of.
func specIn(h hold.Hold) (*Spec, bool) {
	switch s := h.Spec.(type) {
	case *Spec:
		return s, true
	case *IPs:
		return &s.Spec, true
	}
	return nil, false
}

// alias returns the alias that a port has to have. It names the last ADD that the agent answered with this port. The spec names the first such ADD
// only, but a plugin that does an older DEL without an agent goes by the alias.
func (p *Ports) alias(s *Spec) string {
	of, _ := stamp.ParsePort(s.Alias)
	if since := p.Since(of.ID); since > of.Start {
		return of.Since(since)
	}
	return s.Alias
}

func (p *Ports) see(name string, index int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.indices[name] = index
}

func (p *Ports) index(name string) (int, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	i, ok := p.indices[name]
	return i, ok
}

// gone forgets a port that is not there any more.
func (p *Ports) gone(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.indices, name)
	delete(p.unsettled, name)
	delete(p.furnished, name)
}

func (p *Ports) settling(name string, wait bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if wait {
		p.unsettled[name] = true
	} else {
		delete(p.unsettled, name)
	}
}

func (p *Ports) settles(name string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.unsettled[name]
}

// find returns all ports of the instance, as far as they show what they are: they do not show the pod. A glance takes the bridges' ports alone: a
// list of all links costs the most (rtnl.Conn.Veths), and only somebody else takes a port off its bridge.
func (p *Ports) find(_ context.Context, look *hold.Look) (all []hold.Hold, err error) {
	links, err := p.list(look.IsGlance())
	for _, l := range links {
		of, _ := stamp.ParsePort(l.Alias)
		all = append(all, hold.Hold{Owner: hold.ID(of.ID), Spec: &Spec{
			Name: of.Link(), Alias: l.Alias, HostMAC: l.MAC,
		}})
	}
	if err != nil {
		err = fmt.Errorf("looking for ports of bridges: %w", err)
	}
	return all, err
}

// Whole returns the instance's ports that are neither half-made nor cut off, under the names that ADD gave them. It leaves out those that somebody
// has taken off their bridges.
func (p *Ports) Whole() ([]rtnl.Link, error) {
	all, err := rtnl.Steady(func() ([]rtnl.Link, error) { return p.list(true) })
	if err != nil {
		return nil, fmt.Errorf("looking for ports of bridges: %w", err)
	}
	var whole []rtnl.Link
	for _, l := range all {
		if of, _ := stamp.ParsePort(l.Alias); stamp.IsWholePort(l.Alias, l.Group) {
			l.Name = of.Link()
			whole = append(whole, l)
		}
	}
	return whole, nil
}

// list returns the links whose alias is that of a port of the instance. attached leaves out those that are no ports any more.
func (p *Ports) list(attached bool) (links []rtnl.Link, err error) {
	own := func(l rtnl.Link) bool {
		of, ok := stamp.ParsePort(l.Alias)
		if ok = ok && of.Instance == p.Instance; ok {
			p.see(of.Link(), l.Index)
		}
		return ok
	}
	if !attached {
		links, err = p.Conn.Veths(func(l rtnl.Link) (bool, error) { return own(l), nil })
		if err == nil {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.listed = true
		}
		return links, err
	}
	bridges, err := p.Conn.Bridges()
	if err != nil {
		return nil, err
	}
	for _, b := range bridges {
		ports, err := p.Conn.Ports(b)
		if err != nil {
			return links, err
		}
		for _, l := range ports {
			if own(l.Link) {
				links = append(links, l.Link)
			}
		}
	}
	return links, nil
}

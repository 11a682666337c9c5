package podgateway

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/kernel"
	"github.com/berth-net/berth/internal/kernel/rtnl"
)

const (
	// behind plus an interface's index is the metric of a route that Berth has put behind another interface's (kinds/link). Such a route
	// stays.
	behind = 1 << 16
	// prior is the priority of the rule by which a packet goes by a route of the main table that is no default route; the rule of the table
	// of its interface has the next number. Both come before the rules of kinds/link and of the main table, and no others of Berth's have
	// these numbers.
	prior = 32762
	// most is how many routes of a family, rules or addresses the agent looks at: a pod can make its lists as long as it likes.
	most = 4096
)

// pod is a pod's network namespace, for the routes of one family.
type pod struct {
	*rtnl.Conn
	ifname  string
	index   int // 0: there is no such interface
	gateway netip.Addr
}

// own returns the hold's route.
func (p *pod) own() rtnl.Default { return rtnl.NewDefault(p.index, p.gateway) }

// isOwn reports whether a route is the hold's, whoever made it. The kernel's usual metric is 0, and 1024 for IPv6.
func (p *pod) isOwn(d rtnl.Default) bool {
	usual := uint32(0)
	if d.IPv6 {
		usual = 1024
	}
	return d.Table == 0 && d.Index == p.index && d.Gateway == p.gateway && d.Metric == usual
}

// sight is what default routes a pod has.
type sight struct {
	own    bool
	rivals []rtnl.Default // of the main table
	kept   []rtnl.Default // that have been put aside
}

func (p *pod) look() (seen sight, err error) {
	err = p.EachDefault(p.gateway.Is6(), most, func(d rtnl.Default) error {
		switch {
		case p.isOwn(d):
			seen.own = true
		case d.Index != 0 && d.Table == rtnl.Aside(d.Index):
			seen.kept = append(seen.kept, d)
		case d.Table == 0 && !(d.Ours && d.Metric == behind+uint32(d.Index)):
			seen.rivals = append(seen.rivals, d)
		}
		return nil
	})
	if err != nil {
		return sight{}, fmt.Errorf("looking at the pod's default routes: %w", err)
	}
	return seen, nil
}

// setAside moves the default routes of others into their interfaces' tables. The copy comes before the end: whenever the agent dies, each
// route is somewhere.
//
//	ip route add default ... table KEEP
//	ip rule add from ADDR lookup main suppress_prefixlength 0
//	ip rule add from ADDR lookup KEEP
//	ip route del default ...
func (p *pod) setAside() error {
	seen, err := p.look()
	if err != nil {
		return err
	}
	for _, d := range seen.rivals {
		kept := d.In(rtnl.Aside(d.Index))
		if err := p.Do(rtnl.AddDefault(kept)); err != nil && !errors.Is(err, kernel.ErrExists) {
			return err
		}
		seen.kept = append(seen.kept, kept)
	}
	rules, err := p.missing(seen.kept)
	if err != nil {
		return err
	}
	for _, r := range rules {
		if err := p.Do(rtnl.AddRule(r)); err != nil && !errors.Is(err, kernel.ErrExists) {
			return err
		}
	}
	for _, d := range seen.rivals {
		if err := p.Do(rtnl.DelDefault(d)); err != nil && !errors.Is(err, kernel.ErrNotFound) {
			return err
		}
	}
	return nil
}

// putBack is the reverse of setAside. A route in whose place another one is by now, or whose gateway cannot be reached any more, ends.
func (p *pod) putBack() error {
	seen, err := p.look()
	if err != nil {
		return err
	}
	for _, d := range seen.kept {
		err := p.Do(rtnl.AddDefault(d.In(0)))
		if err != nil && !errors.Is(err, kernel.ErrExists) && !errors.Is(err, kernel.ErrUnreachable) && !errors.Is(err, kernel.ErrInvalid) {
			return err
		}
		if err := p.Do(rtnl.DelDefault(d)); err != nil && !errors.Is(err, kernel.ErrNotFound) {
			return err
		}
	}
	rules, err := p.rules()
	if err != nil {
		return err
	}
	for _, r := range rules {
		if err := p.Do(rtnl.DelRule(r)); err != nil && !errors.Is(err, kernel.ErrNotFound) {
			return err
		}
	}
	return nil
}

// missing returns the rules that the pod lacks for routes that have been put aside.
func (p *pod) missing(kept []rtnl.Default) (missing []rtnl.Rule, err error) {
	var indices []int
	for _, d := range kept {
		if d.Index != 0 && d.Index != p.index && !slices.Contains(indices, d.Index) {
			indices = append(indices, d.Index)
		}
	}
	if len(indices) == 0 {
		return nil, nil
	}
	has, err := p.rules()
	if err != nil {
		return nil, err
	}
	for _, index := range indices {
		addrs, err := p.addresses(index, false)
		if err != nil {
			return nil, err
		}
		for _, a := range addrs {
			for _, r := range []rtnl.Rule{
				{From: a, Table: unix.RT_TABLE_MAIN, Priority: prior, Specific: true},
				{From: a, Table: rtnl.Aside(index), Priority: prior + 1},
			} {
				if !slices.Contains(has, r) {
					missing = append(missing, r)
				}
			}
		}
	}
	return missing, nil
}

// rules returns the kind's rules of the family.
func (p *pod) rules() (all []rtnl.Rule, err error) {
	looked := 0
	err = p.EachRule(p.gateway.Is6(), func(r rtnl.Rule, ours bool) error {
		if looked++; looked > most {
			return fmt.Errorf("there are more than %d, and the agent does not look at the rest", most)
		}
		if ours && (r.Priority == prior || r.Priority == prior+1) {
			all = append(all, r)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("looking at the pod's policy rules: %w", err)
	}
	return all, nil
}

// addresses returns the addresses of the family that an interface has; those of the link itself only if they are wanted.
func (p *pod) addresses(index int, linkLocal bool) (all []netip.Addr, err error) {
	looked := 0
	err = p.EachAddress(index, p.gateway.Is6(), func(a rtnl.Address) error {
		if looked++; looked > most {
			return fmt.Errorf("there are more than %d, and the agent does not look at the rest", most)
		}
		if addr := a.Prefix.Addr(); linkLocal || !addr.IsLinkLocalUnicast() {
			all = append(all, addr)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("looking at the addresses of an interface: %w", err)
	}
	return all, nil
}

package macvlan

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"time"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/kernel/rtnl"
)

// sysctl is a sysctl of the macvlan, net/NAME with the interface's name in it.
type sysctl struct{ before, after, want string }

func (x sysctl) name(ifname string) string { return x.before + ifname + x.after }

// sysctls returns the sysctls of the macvlan that Berth sets. The macvlan's addresses come from Berth, so the pod
// takes none from routers of the network, nor a default route. When the macvlan comes up it tells the network its
// IPv4 addresses (arp_notify): others may remember the MACs of the pods that had them before. For IPv6 there is no
// such sysctl: with ndisc_notify the kernel sends an advertisement without the override flag, by which nobody
// replaces a MAC (addrconf_dad_completed; RFC 4861, section 7.2.5).
func (s *Spec) sysctls() []sysctl {
	all := []sysctl{{"ipv4/conf/", "/arp_notify", "1"}}
	if !s.has(true) {
		return append(all, sysctl{"ipv6/conf/", "/disable_ipv6", "1"})
	}
	return append(all,
		sysctl{"ipv6/conf/", "/disable_ipv6", "0"},
		sysctl{"ipv6/conf/", "/accept_ra", "0"})
}

// prepare gives a macvlan, which is down, its sysctls and its addresses.
func (p *pod) prepare(s *Spec, l rtnl.Macvlan) error {
	if err := p.at.Do(func() error {
		for _, x := range s.sysctls() {
			err := ns.SetSysctl(x.name(l.Name), x.want)
			if err != nil && !(errors.Is(err, fs.ErrNotExist) && !s.has(true)) { // a kernel without IPv6
				return err
			}
		}
		return nil
	}); err != nil {
		return err
	}
	var rs []rtnl.Request
	for _, a := range s.Addresses {
		rs = append(rs, rtnl.AddAddress(rtnl.Address{Prefix: a, Index: l.Index}))
	}
	for _, err := range p.conn.Each(rs...) {
		if err != nil && !errors.Is(err, kernel.ErrExists) {
			return err
		}
	}
	return nil
}

// laterMetric plus an interface's index is the metric of a route that another interface of the pod has already.
const laterMetric = 1 << 16

// open sets a macvlan and lo up, and adds the macvlan's routes. If another interface of the pod has a route already,
// that one wins, and the macvlan's gets a higher metric.
func (p *pod) open(s *Spec, l rtnl.Macvlan) error {
	_ = p.conn.Do(rtnl.SetLink("lo", rtnl.Up())) // the pod may have no lo any more, and gets along
	if err := p.conn.Do(rtnl.SetLinkAt(l.Index, rtnl.Up())); err != nil {
		return err
	}
	for _, r := range s.routes(l.Index) {
		err := p.conn.Do(rtnl.AddRoute(r))
		if errors.Is(err, kernel.ErrExists) {
			r.Metric = laterMetric + uint32(l.Index)
			if err = p.conn.Do(rtnl.AddRoute(r)); errors.Is(err, kernel.ErrExists) {
				err = nil // the macvlan's own
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// unusable returns the pod's addresses that do not receive yet. IPv6 addresses receive a little after they are
// added. After unusable the macvlan can send, because GetLink makes the kernel bring its carrier up to date.
func (p *pod) unusable(s *Spec) (dumb []netip.Addr, err error) {
	locals := make([]bool, len(s.Addresses))
	rs := []rtnl.Request{rtnl.GetLink(s.Ifname, new(rtnl.Link))}
	for i, a := range s.Addresses {
		rs = append(rs, rtnl.IsLocal(a.Addr(), &locals[i]))
	}
	for _, err := range p.conn.Each(rs...) {
		if err != nil && !errors.Is(err, kernel.ErrUnreachable) {
			return nil, fmt.Errorf("in the pod: %w", err)
		}
	}
	for i, a := range s.Addresses {
		if !locals[i] {
			dumb = append(dumb, a.Addr())
		}
	}
	return dumb, nil
}

// settling is how long settle waits, at most, until a pod can use its addresses. The kernel needs a few
// microseconds, unless the machine is busy, or the pod interferes.
const settling = 30 * time.Second

// settle waits until the macvlan's addresses receive. It does nothing unless Acquire has made the macvlan and has not
// seen that they do.
func (m *Macvlans) settle(ctx context.Context, h hold.Hold) error {
	s, err := m.spec(h)
	if err != nil {
		return err
	}
	k, ok := m.know(s)
	if !ok || !k.unsettled {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, settling)
	defer cancel()
	p, err := m.enter(ctx, s)
	if errors.Is(err, ns.ErrGone) {
		err = fmt.Errorf("%w: %w", hold.ErrHomeless, err)
	}
	if err == nil {
		defer p.leave()
		err = p.wait(ctx, s)
	}
	if err != nil {
		return fmt.Errorf("waiting for %s in %s: %w", s.Ifname, s.Netns.Path, err)
	}
	m.learn(s, known{parent: k.parent})
	return nil
}

func (p *pod) wait(ctx context.Context, s *Spec) error {
	for pause := 50 * time.Microsecond; ; pause = min(2*pause, 10*time.Millisecond) {
		dumb, err := p.unusable(s)
		if err != nil || len(dumb) == 0 {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("address %s does not receive yet: %w", dumb[0], context.Cause(ctx))
		case <-time.After(pause):
		}
	}
}

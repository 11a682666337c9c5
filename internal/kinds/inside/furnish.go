package inside

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"time"

	"github.com/berth-net/berth/internal/kernel"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/kernel/rtnl"
)

// sysctl is a sysctl of the interface, net/NAME with the interface's name in it.
type sysctl struct{ before, after, want string }

func (x sysctl) name(ifname string) string { return x.before + ifname + x.after }

var notifies = sysctl{"ipv4/conf/", "/arp_notify", "1"}

// sysctls returns the sysctls of the interface that Berth sets. The interface's addresses come from Berth, so the pod
// takes none from routers of the network, nor a default route. When the interface comes up it tells the network its
// IPv4 addresses (arp_notify): others may remember the MACs of the pods that had them before. For IPv6 there is no
// such sysctl: with ndisc_notify the kernel sends an advertisement without the override flag, by which nobody
// replaces a MAC (addrconf_dad_completed; RFC 4861, section 7.2.5).
func (f Face) sysctls(notify sysctl) []sysctl {
	all := []sysctl{notify}
	if !f.has(true) {
		return append(all, sysctl{"ipv6/conf/", "/disable_ipv6", "1"})
	}
	return append(all,
		sysctl{"ipv6/conf/", "/disable_ipv6", "0"},
		sysctl{"ipv6/conf/", "/accept_ra", "0"})
}

// Prepare gives an interface, which is down, its sysctls and its addresses.
func (p *Pod) Prepare(f Face, l rtnl.Link) error { return p.prepare(f, l, notifies) }

func (p *Pod) prepare(f Face, l rtnl.Link, notify sysctl) error {
	if err := p.At.Do(func() error {
		for _, x := range f.sysctls(notify) {
			err := ns.SetSysctl(x.name(l.Name), x.want)
			if err != nil && !(errors.Is(err, fs.ErrNotExist) && !f.has(true)) { // a kernel without IPv6
				return err
			}
		}
		return nil
	}); err != nil {
		return err
	}
	var rs []rtnl.Request
	for _, a := range f.Addresses {
		rs = append(rs, rtnl.AddAddress(rtnl.Address{Prefix: a, Index: l.Index}))
	}
	for _, err := range p.Conn.Each(rs...) {
		if err != nil && !errors.Is(err, kernel.ErrExists) {
			return err
		}
	}
	return nil
}

// laterMetric plus an interface's index is the metric of a route that another interface of the pod has already.
const laterMetric = 1 << 16

// Open sets an interface and lo up, and adds the interface's routes. If another interface of the pod has a route already,
// that one wins, and the interface's gets a higher metric.
func (p *Pod) Open(f Face, l rtnl.Link) error {
	_ = p.Conn.Do(rtnl.SetLink("lo", rtnl.Up())) // the pod may have no lo any more, and gets along
	if err := p.Conn.Do(rtnl.SetLinkAt(l.Index, rtnl.Up())); err != nil {
		return err
	}
	for _, r := range f.routes(l.Index) {
		err := p.Conn.Do(rtnl.AddRoute(r))
		if errors.Is(err, kernel.ErrExists) {
			r.Metric = laterMetric + uint32(l.Index)
			if err = p.Conn.Do(rtnl.AddRoute(r)); errors.Is(err, kernel.ErrExists) {
				err = nil // the interface's own
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Unusable returns the pod's addresses that do not receive yet. IPv6 addresses receive a little after they are
// added. After Unusable the interface can send, because GetLink makes the kernel bring its carrier up to date.
func (p *Pod) Unusable(f Face) (dumb []netip.Addr, err error) {
	locals := make([]bool, len(f.Addresses))
	rs := []rtnl.Request{rtnl.GetLink(f.Ifname, new(rtnl.Link))}
	for i, a := range f.Addresses {
		rs = append(rs, rtnl.IsLocal(a.Addr(), &locals[i]))
	}
	for _, err := range p.Conn.Each(rs...) {
		if err != nil && !errors.Is(err, kernel.ErrUnreachable) {
			return nil, fmt.Errorf("in the pod: %w", err)
		}
	}
	for i, a := range f.Addresses {
		if !locals[i] {
			dumb = append(dumb, a.Addr())
		}
	}
	return dumb, nil
}

// Settling is how long Wait should wait, at most, until a pod can use its addresses. The kernel needs a few
// microseconds, unless the machine is busy, or the pod interferes.
const Settling = 30 * time.Second

// Wait waits until the interface's addresses receive.
func (p *Pod) Wait(ctx context.Context, f Face) error {
	for pause := 50 * time.Microsecond; ; pause = min(2*pause, 10*time.Millisecond) {
		dumb, err := p.Unusable(f)
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

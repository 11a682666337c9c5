package bridgeport

import (
	"context"
	"errors"
	"fmt"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/kinds/inside"
)

// IPsName is the name of the kind of addresses that the pod's end of a port gets later, in ledger records too.
const IPsName = "bridgeportip"

// IPs are the addresses and the routes of a pod's end that was made without them (Spec.Bare): its Spec says all that port and end then have. An IPAM
// plugin that asks for addresses by the interface, such as dhcp, needs it before anybody knows them.
type IPs struct{ Spec }

// Kind returns IPsName.
func (s *IPs) Kind() string { return IPsName }

func (s *IPs) String() string { return "addresses behind " + s.Spec.String() }

// IPsKind returns the kind of these addresses. By them alone their owner can be reached, so they have the port's cut.
func (p *Ports) IPsKind() hold.Kind {
	return hold.Kind{
		Stage:   hold.Use,
		New:     func() hold.Spec { return new(IPs) },
		Acquire: p.furnish,
		Settle:  p.settleIPs,
		Verify:  p.verifyIPs,
		Release: hold.Each(p.strip),
		Cut:     p.cut,
	}
}

// within calls f in the pod, with a port and the pod's end of it. If there is no port, no pod, or no end of the port in the pod, the error is one of
// those that isAway knows.
func (p *Ports) within(ctx context.Context, s *Spec, f func(pod *inside.Pod, port, end rtnl.Link) error) error {
	port, err := p.locate(s)
	if err != nil {
		return err
	}
	pod, err := inside.Enter(ctx, s.Netns, nil)
	if err != nil {
		return err
	}
	defer pod.Leave()
	end, err := p.end(pod, port)
	if err != nil {
		return err
	}
	return f(pod, port, end)
}

// isAway reports whether within has found no port, no pod, or no end of the port in the pod.
func isAway(err error) bool {
	return errors.Is(err, kernel.ErrNotFound) || errors.Is(err, ns.ErrGone) || errors.Is(err, errElsewhere)
}

// furnish gives the pod's end of a port its addresses and routes (inside.Supply), and tells the network the IPv4 addresses.
func (p *Ports) furnish(ctx context.Context, h hold.Hold) error {
	s, err := p.spec(h)
	if err != nil {
		return err
	}
	want, err := s.check()
	if err == nil {
		err = p.within(ctx, s, func(pod *inside.Pod, port, end rtnl.Link) error {
			changed, err := pod.Supply(s.face(), end, func() error { return p.stays(ctx, h.Owner) })
			if err != nil {
				p.setFurnished(s.Name, 0)
			}
			if err != nil || !changed {
				return err
			}
			if err := p.Conn.Do(rtnl.GetLinkAt(port.Index, &port)); err != nil { // brings the port's carrier up to date
				return err
			}
			_, err = pod.Unusable(s.face())
			p.announce(pod, want, end.Index) // behind Unusable, after which the pod's end can send
			return err
		})
	}
	if errors.Is(err, ns.ErrGone) {
		err = fmt.Errorf("%w: %w", hold.ErrHomeless, err)
	}
	if err != nil {
		return fmt.Errorf("giving %s in %s its addresses: %w", s.Ifname, s.Netns.Path, err)
	}
	return nil
}

// settleIPs waits until the addresses receive.
func (p *Ports) settleIPs(ctx context.Context, h hold.Hold) error {
	s, err := p.spec(h)
	if err != nil {
		return err
	}
	return p.awaitUse(ctx, s)
}

// verifyIPs looks whether the pods have their addresses, no furnish has stopped half-way, and no cut has taken them off the network. What else is not
// as furnish left it, such as a route or the state of the pod's end, is the pod's own business, and VerifyPod's. A glance enters no pod whose addresses
// this agent has seen there, as long as the node has the same port as then: what else may happen to them happens inside the pod, which the next full
// look sees.
func (p *Ports) verifyIPs(ctx context.Context, look *hold.Look, hs []hold.Hold) []error {
	return inside.Each(hs, func(h hold.Hold) error {
		s, err := p.spec(h)
		if err != nil {
			return err
		}
		if look.IsGlance() && p.stillFurnished(s) {
			return nil
		}
		err = p.within(ctx, s, func(pod *inside.Pod, port, end rtnl.Link) error {
			p.setFurnished(s.Name, 0)
			half, errHalf := pod.IsHalfSupplied(end)
			missing, err := pod.MissingAddresses(s.face(), end.Index)
			switch err = errors.Join(err, errHalf); {
			case err != nil:
				return err
			case len(missing) > 0:
				return fmt.Errorf("%w: no address %s", hold.ErrGone, missing[0])
			case port.Group == s.groups().Cut():
				return fmt.Errorf("%w: cut off (group %d)", hold.ErrChanged, port.Group)
			case half:
				return hold.ErrHalfMade
			}
			p.setFurnished(s.Name, port.Index)
			return nil
		})
		if isAway(err) {
			err = fmt.Errorf("%w: %w", hold.ErrGone, err)
		}
		if err != nil {
			return fmt.Errorf("%s, in %s: %w", h.Spec, s.Netns.Path, err)
		}
		return nil
	})
}

// setFurnished remembers at which index a port was whose pod had its addresses; 0: it may lack them.
func (p *Ports) setFurnished(name string, index int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.furnished[name] = index
}

// stillFurnished reports whether the port is there, and is no other than when this agent saw the addresses in the pod.
func (p *Ports) stillFurnished(s *Spec) bool {
	l, err := p.locate(s)
	p.mu.Lock()
	defer p.mu.Unlock()
	return err == nil && l.Group != s.groups().Cut() && p.furnished[s.Name] == l.Index
}

// strip takes all addresses off the pod's end (inside.Strip), and sets the port up, which stays cut off by its group: an IPAM plugin may now say by the
// end that the addresses are given back. If the pod cannot be entered any more, or the end is not in it, the port stays down: the end still has its
// addresses.
//
//	ip link set NAME up
func (p *Ports) strip(ctx context.Context, h hold.Hold) error {
	s, err := p.spec(h)
	if err != nil {
		return err
	}
	p.setFurnished(s.Name, 0)
	err = p.within(ctx, s, func(pod *inside.Pod, port, end rtnl.Link) error {
		if err := pod.Strip(end); err != nil {
			return err
		}
		// GetLink makes the kernel bring the carrier up to date: before that the bridge passes nothing on.
		return p.Conn.Do(rtnl.SetLinkAt(port.Index, rtnl.Up()), rtnl.GetLinkAt(port.Index, &port))
	})
	if err != nil && !isAway(err) {
		return fmt.Errorf("taking the addresses off %s in %s: %w", s.Ifname, s.Netns.Path, err)
	}
	return nil
}

package macvlan

import (
	"context"
	"errors"
	"fmt"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/kernel/rtnl"
)

// IPsName is the name of the kind of addresses that a macvlan gets later, in ledger records too.
const IPsName = "macvlanip"

// IPs are the addresses and the routes of a macvlan that was made without them (Spec.Bare): its Spec says all that the macvlan then has. An IPAM
// plugin that asks for addresses by the interface, such as dhcp, needs it before anybody knows them.
type IPs struct{ Spec }

// Kind returns IPsName.
func (s *IPs) Kind() string { return IPsName }

func (s *IPs) String() string { return ipsOf(&s.Spec) }

// ipsOf names the addresses of a macvlan that came later.
func ipsOf(s *Spec) string { return "addresses of " + s.String() }

// IPsKind returns the kind of these addresses. By them alone their owner can be reached, so they have the macvlan's cut.
func (m *Macvlans) IPsKind() hold.Kind {
	return hold.Kind{
		Stage:   hold.Use,
		New:     func() hold.Spec { return new(IPs) },
		Acquire: m.furnish,
		Settle:  m.settleIPs,
		Verify:  m.verifyIPs,
		Release: hold.Each(m.strip),
		Cut:     m.cut,
	}
}

// furnish gives a macvlan its addresses and routes (inside.Supply).
func (m *Macvlans) furnish(ctx context.Context, h hold.Hold) error {
	s, err := m.spec(h)
	if err != nil {
		return err
	}
	if err := m.furnishIn(ctx, h.Owner, s); err != nil {
		return fmt.Errorf("giving macvlan %s in %s its addresses: %w", s.Ifname, s.Netns.Path, err)
	}
	return nil
}

func (m *Macvlans) furnishIn(ctx context.Context, owner hold.ID, s *Spec) error {
	if _, err := s.check(); err != nil {
		return err
	}
	p, err := m.enter(ctx, s)
	if errors.Is(err, ns.ErrGone) {
		return fmt.Errorf("%w: %w", hold.ErrHomeless, err)
	}
	if err != nil {
		return err
	}
	defer p.Leave()
	l, err := p.locate(s)
	if err != nil {
		return err
	}
	if _, err = p.Supply(s.face(), l.Link, func() error { return m.stays(owner) }); err != nil {
		m.learnAs(ipsOf(s), known{})
	}
	return err
}

// settleIPs waits until the addresses receive.
func (m *Macvlans) settleIPs(ctx context.Context, h hold.Hold) error {
	s, err := m.spec(h)
	if err != nil {
		return err
	}
	return m.awaitUse(ctx, s)
}

// verifyIPs looks whether the macvlans have their addresses, no furnish has stopped half-way, and no cut has taken them off the network. What else is
// not as furnish left it, such as a route or the state of the macvlan, is the pod's own business, and VerifyPod's (verify). A glance enters no pod
// whose addresses this agent has seen there.
func (m *Macvlans) verifyIPs(ctx context.Context, look *hold.Look, hs []hold.Hold) []error {
	return m.look(look, hs, ipsOf, func(s *Spec) error {
		what := fmt.Sprintf("%s in %s", ipsOf(s), s.Netns.Path)
		m.learnAs(ipsOf(s), known{})
		p, err := m.enter(ctx, s)
		if errors.Is(err, ns.ErrGone) {
			return fmt.Errorf("%s: %w: %w", what, hold.ErrGone, err)
		}
		if err != nil {
			return fmt.Errorf("looking at %s: %w", what, err)
		}
		defer p.Leave()
		l, err := p.locate(s)
		if errors.Is(err, errMissing) {
			return fmt.Errorf("%s: %w: %w", what, hold.ErrGone, err)
		}
		if err != nil {
			return fmt.Errorf("looking at %s: %w", what, err)
		}
		half, errHalf := p.IsHalfSupplied(l.Link)
		missing, err := p.MissingAddresses(s.face(), l.Index)
		switch err = errors.Join(err, errHalf); {
		case err != nil:
			return fmt.Errorf("looking at %s: %w", what, err)
		case len(missing) > 0:
			return fmt.Errorf("%s: %w: no address %s", what, hold.ErrGone, missing[0])
		case s.groups().IsDying(l.Group):
			return fmt.Errorf("%s: %w: cut off (group %d)", what, hold.ErrChanged, l.Group)
		case half:
			return fmt.Errorf("%s: %w", what, hold.ErrHalfMade)
		}
		if parent, err := m.parent(s); err == nil {
			m.learnAs(ipsOf(s), known{parent: parent.Index})
		}
		return nil
	})
}

// strip takes all addresses off a macvlan, and sets it up (inside.Strip).
func (m *Macvlans) strip(ctx context.Context, h hold.Hold) error {
	s, err := m.spec(h)
	if err != nil {
		return err
	}
	m.forget(s)
	err = m.inside(ctx, s, func(p *pod, l rtnl.Macvlan) error { return p.Strip(l.Link) })
	if err != nil {
		return fmt.Errorf("taking the addresses off macvlan %s in %s: %w", s.Ifname, s.Netns.Path, err)
	}
	return nil
}

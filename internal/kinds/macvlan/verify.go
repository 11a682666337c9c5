package macvlan

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

// verify compares macvlans with their specs: that they exist, and what makes them the owners' and attaches them to
// the network (attachment). Everything else is the pod's own business, and VerifyPod's.
//
// A glance enters no pod whose macvlan this agent has seen whole, as long as the node has the same parent as then:
// with its parent a macvlan goes, and what else may happen to it happens inside the pod, which the next full look
// sees.
func (m *Macvlans) verify(ctx context.Context, look *hold.Look, hs []hold.Hold) []error {
	return m.look(look, hs, (*Spec).String, func(s *Spec) error { return m.verifyOne(ctx, s) })
}

// look calls full for each hold that a glance does not spare. text is what the hold is known by.
func (m *Macvlans) look(look *hold.Look, hs []hold.Hold, text func(*Spec) string, full func(*Spec) error) []error {
	parents := m.parents(look, hs)
	return m.eachPod(hs, func(s *Spec) error {
		if k, _ := m.knowAs(text(s)); k.parent != 0 && k.parent == parents[s.Parent] {
			return nil
		}
		return full(s)
	})
}

// eachPod calls f for each hold, beside each other, and returns an answer for each.
func (m *Macvlans) eachPod(hs []hold.Hold, f func(*Spec) error) []error {
	return inside.Each(hs, func(h hold.Hold) error {
		s, err := m.spec(h)
		if err != nil {
			return err
		}
		return f(s)
	})
}

// parents returns, for a glance, the indices of the holds' parents; 0: the node has no such link.
func (m *Macvlans) parents(look *hold.Look, hs []hold.Hold) map[string]int {
	if !look.IsGlance() {
		return nil
	}
	all := map[string]int{}
	for _, h := range hs {
		s, ok := specIn(h)
		if !ok {
			continue
		}
		if _, seen := all[s.Parent]; !seen {
			l, _ := m.parent(s) // a parent that parents cannot see is a reason for a full look
			all[s.Parent] = l.Index
		}
	}
	return all
}

func (m *Macvlans) verifyOne(ctx context.Context, s *Spec) error {
	return m.compare(ctx, s, func(*pod, rtnl.Macvlan) ([]string, error) { return nil, nil })
}

// VerifyPod compares all of a macvlan with its spec, for CHECK. It returns what Verify returns. It ignores addresses
// and routes that the pod has besides.
func (m *Macvlans) VerifyPod(ctx context.Context, h hold.Hold) error {
	s, err := m.spec(h)
	if err != nil {
		return err
	}
	return m.compare(ctx, s, func(p *pod, l rtnl.Macvlan) ([]string, error) { return p.differences(s, l) })
}

// compare enters a pod and returns nil if its macvlan is as its spec says, hold.ErrGone if the namespace or the
// macvlan is gone, or else an error with all that differs, which includes what more says.
func (m *Macvlans) compare(ctx context.Context, s *Spec, more func(*pod, rtnl.Macvlan) ([]string, error)) error {
	what := fmt.Sprintf("macvlan %s in %s", s.Ifname, s.Netns.Path)
	m.forgetWhole(s)
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
	d, parent, err := m.attachment(p, s, l)
	if err != nil {
		return fmt.Errorf("looking at %s: %w", what, err)
	}
	whole := len(d) == 0
	in, err := more(p, l)
	if err != nil {
		return fmt.Errorf("looking at %s: %w", what, err)
	}
	if d = append(d, in...); len(d) > 0 {
		err = &hold.ChangedError{What: what, Differences: d}
	}
	if l.Group == s.groups().Coming() {
		return kernel.As(hold.ErrHalfMade, err)
	}
	if whole {
		k, _ := m.know(s)
		m.learn(s, known{parent, k.unsettled})
	}
	return err
}

// forgetWhole lets no glance rely on an earlier look until another one has seen the macvlan whole.
func (m *Macvlans) forgetWhole(s *Spec) {
	if k, ok := m.know(s); ok {
		m.learn(s, known{unsettled: k.unsettled})
	}
}

// attachment returns what differs of the macvlan's name, mark, mode and parent, and the parent's index; 0: the node
// has no such link.
func (m *Macvlans) attachment(p *pod, s *Spec, l rtnl.Macvlan) (d []string, parent int, err error) {
	differ := func(format string, args ...any) { d = append(d, fmt.Sprintf(format, args...)) }
	if l.Name != s.Ifname {
		differ("renamed to %s", l.Name)
	}
	switch g := s.groups(); {
	case l.Group == g.Live():
	case l.Group == g.Coming():
		differ("half-made (group %d)", l.Group)
	case g.IsDying(l.Group):
		differ("cut off (group %d)", l.Group)
	default:
		differ("group %d, not %d", l.Group, g.Live())
	}
	if l.Alias != s.Alias {
		differ("alias %q, not %q", l.Alias, s.Alias)
	}
	if l.Mode.String() != s.Mode {
		differ("mode %s, not %s", l.Mode, s.Mode)
	}
	of, err := m.parent(s)
	if errors.Is(err, kernel.ErrNotFound) {
		differ("its parent is link %d, and the node has no link %s", l.Peer, s.Parent)
		return d, 0, nil
	}
	if err != nil {
		return nil, 0, err
	}
	if err := m.hasParent(p, of, l); err != nil {
		differ("%v", err)
	}
	return d, of.Index, nil
}

// differences returns what in the pod is not as Acquire left it.
func (p *pod) differences(s *Spec, l rtnl.Macvlan) (d []string, err error) {
	differ := func(format string, args ...any) { d = append(d, fmt.Sprintf(format, args...)) }
	if s.MAC != "" && l.MAC != s.MAC {
		differ("mac %s, not %s", l.MAC, s.MAC)
	}
	if s.MTU != 0 && l.MTU != s.MTU {
		differ("mtu %d, not %d", l.MTU, s.MTU)
	}
	in, err := p.Differences(s.face(), l.Link)
	return append(d, in...), err
}

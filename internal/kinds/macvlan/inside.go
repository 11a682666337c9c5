package macvlan

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel"
	"github.com/berth-net/berth/internal/kernel/nlsock"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/kinds/inside"
)

// pod is a pod's network namespace while a function of this kind is in it.
type pod struct{ *inside.Pod }

// enter opens a pod's network namespace, as inside.Enter does.
func (m *Macvlans) enter(ctx context.Context, s *Spec) (*pod, error) {
	p, err := inside.Enter(ctx, s.Netns, m.Deletions)
	return &pod{p}, err
}

// locate finds the macvlan of a spec in the pod, even if somebody has renamed it. If the pod has none the error is
// errMissing. The agent looks at no more than inside.Most of the pod's macvlans.
func (p *pod) locate(s *Spec) (rtnl.Macvlan, error) { return p.find(s, inside.Most) }

// find is locate for a pod of which the agent looks at `most` macvlans.
func (p *pod) find(s *Spec, most int) (found rtnl.Macvlan, err error) {
	err = p.Conn.Do(rtnl.GetMacvlan(s.Ifname, &found))
	if err == nil && s.owns(found) {
		return found, nil
	}
	// ErrLong: something has the name, and says more than anybody reads.
	if err != nil && !errors.Is(err, kernel.ErrNotFound) && !errors.Is(err, nlsock.ErrLong) {
		return found, err
	}
	looked, ok := 0, false
	err = p.Conn.EachMacvlan(func(m rtnl.Macvlan) error {
		if looked++; s.owns(m) {
			found, ok = m, true
			return rtnl.ErrStop
		}
		if looked >= most {
			return fmt.Errorf("the pod has more than %d macvlans, and the agent does not look at the rest", most)
		}
		return nil
	})
	if err == nil && !ok {
		err = errMissing
	}
	return found, err
}

// search is locate for those who cut off or delete the macvlan. A pod must not make that fail: so search looks at all
// macvlans, however many there are, and if it cannot read them in one list, it reads one after the other. The end of
// the context ends it.
func (p *pod) search(ctx context.Context, s *Spec) (rtnl.Macvlan, error) {
	found, err := p.find(s, math.MaxInt)
	if err == nil || errors.Is(err, errMissing) || ctx.Err() != nil {
		return found, err
	}
	indices, err := p.Conn.Indices()
	if err != nil && !errors.Is(err, kernel.ErrInterrupted) { // the macvlan does not come and go: a list that changes has it, too
		return found, err
	}
	for _, index := range indices {
		m, err := p.read(index)
		if err != nil {
			return found, err
		}
		if s.owns(m) {
			return m, nil
		}
	}
	return found, errMissing
}

// read reads the link at an index; a zero Macvlan if there is none by now, or none that is a macvlan. From a macvlan that
// says more than anybody reads it takes away what can be that much: the MACs that the pod has added to it.
func (p *pod) read(index int) (m rtnl.Macvlan, err error) {
	err = p.Conn.Do(rtnl.GetMacvlanAt(index, &m))
	if err != nil && !errors.Is(err, kernel.ErrNotFound) {
		err = p.Conn.Do(rtnl.FlushSources(index), rtnl.GetMacvlanAt(index, &m))
	}
	if errors.Is(err, kernel.ErrNotFound) || errors.Is(err, kernel.ErrUnsupported) {
		return rtnl.Macvlan{}, nil
	}
	return m, err
}

// remove deletes a macvlan by its index. It succeeds if no link has the index.
func (m *Macvlans) remove(p *pod, s *Spec, index int) error {
	answered, err := p.Conn.Delete(rtnl.DelLinkAt(index), index)
	m.lingering.Count(answered, s.Netns)
	if errors.Is(err, kernel.ErrNotFound) {
		return nil
	}
	return err
}

// release deletes a macvlan. If the pod's namespace is gone, so is the macvlan.
func (m *Macvlans) release(ctx context.Context, h hold.Hold) error {
	s, err := m.spec(h)
	if err != nil {
		return err
	}
	m.forget(s)
	err = m.inside(ctx, s, func(p *pod, l rtnl.Macvlan) error { return m.remove(p, s, l.Index) })
	if err != nil {
		return fmt.Errorf("deleting macvlan %s in %s: %w", s.Ifname, s.Netns.Path, err)
	}
	return nil
}

// cut stops all traffic of a macvlan: it moves the macvlan to the cut group, which tells Acquire and Verify that
// the macvlan is cut off, and sets it down, unless it is bare. A pod that may change its interfaces can undo this until Release: the
// node has no say in what a macvlan sends, because its frames do not pass the node's rules.
//
//	ip -n POD link set NAME group CUT down
func (m *Macvlans) cut(ctx context.Context, h hold.Hold) error {
	s, err := m.spec(h)
	if err != nil {
		return err
	}
	m.forget(s)
	err = m.inside(ctx, s, func(p *pod, l rtnl.Macvlan) error {
		settings := []rtnl.Setting{rtnl.Group(s.groups().Cut())}
		if !s.Bare {
			settings = append(settings, rtnl.Down())
		}
		err := p.Conn.Do(rtnl.SetLinkAt(l.Index, settings...))
		if errors.Is(err, kernel.ErrNotFound) { // a release beside it
			return nil
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("cutting off macvlan %s in %s: %w", s.Ifname, s.Netns.Path, err)
	}
	return nil
}

// inside calls f in the pod with the macvlan of a spec. It succeeds without f if the namespace or the macvlan is
// gone.
func (m *Macvlans) inside(ctx context.Context, s *Spec, f func(*pod, rtnl.Macvlan) error) error {
	p, err := m.enter(ctx, s)
	if errors.Is(err, ns.ErrGone) {
		return nil
	}
	if err != nil {
		return err
	}
	defer p.Leave()
	l, err := p.search(ctx, s)
	if errors.Is(err, errMissing) {
		return nil
	}
	if err != nil {
		return err
	}
	return f(p, l)
}

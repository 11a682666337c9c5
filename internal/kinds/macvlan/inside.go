package macvlan

import (
	"context"
	"errors"
	"fmt"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel"
	"github.com/berth-net/berth/internal/kernel/nlsock"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/kernel/rtnl"
)

// inPod is how many items of a list in a pod the agent looks at. A pod can make its lists as long as it likes.
const inPod = 1024

// pod is a pod's network namespace while a function of this kind is in it.
type pod struct {
	at   *ns.Netns
	conn *rtnl.Conn
}

// enter opens a pod's network namespace. If it is gone the error is ns.ErrGone; if its path hangs, ns.ErrHangs. After
// the end of ctx nothing works in the pod any more.
func (m *Macvlans) enter(ctx context.Context, s *Spec) (*pod, error) {
	at, err := s.Netns.Open()
	if err != nil {
		return nil, err
	}
	conn, err := rtnl.OpenFor(ctx, at)
	if err != nil {
		at.Close()
		return nil, err
	}
	if m.Deletions != nil {
		conn.DeleteBy(m.Deletions)
	}
	return &pod{at, conn}, nil
}

func (p *pod) leave() {
	p.conn.Close()
	p.at.Close()
}

// locate finds the macvlan of a spec in the pod, even if somebody has renamed it. If the pod has none the error is
// errMissing.
func (p *pod) locate(s *Spec) (found rtnl.Macvlan, err error) {
	err = p.conn.Do(rtnl.GetMacvlan(s.Ifname, &found))
	if err == nil && s.owns(found) {
		return found, nil
	}
	// ErrLong: something has the name, and more second names than anybody reads.
	if err != nil && !errors.Is(err, kernel.ErrNotFound) && !errors.Is(err, nlsock.ErrLong) {
		return found, err
	}
	looked, ok := 0, false
	err = p.conn.EachMacvlan(func(m rtnl.Macvlan) error {
		if looked++; s.owns(m) {
			found, ok = m, true
			return rtnl.ErrStop
		}
		if looked >= inPod {
			return fmt.Errorf("the pod has more than %d macvlans, and the agent does not look at the rest", inPod)
		}
		return nil
	})
	if err == nil && !ok {
		err = errMissing
	}
	return found, err
}

// remove deletes a macvlan by its index. It succeeds if no link has the index.
func (m *Macvlans) remove(p *pod, s *Spec, index int) error {
	answered, err := p.conn.Delete(rtnl.DelLinkAt(index), index)
	m.lingering.count(answered, s.Netns)
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
// the macvlan is cut off, and sets it down. A pod that may change its interfaces can undo this until Release: the
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
		err := p.conn.Do(rtnl.SetLinkAt(l.Index, rtnl.Group(s.groups().Cut()), rtnl.Down()))
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
	defer p.leave()
	l, err := p.locate(s)
	if errors.Is(err, errMissing) {
		return nil
	}
	if err != nil {
		return err
	}
	return f(p, l)
}

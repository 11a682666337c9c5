package bridgeport

import (
	"context"
	"errors"
	"fmt"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel"
	"github.com/berth-net/berth/internal/kernel/rtnl"
)

// cut stops all traffic of a pod by its port: it moves the port to the cut group, which tells Acquire and Verify that the port is cut off, and sets it
// down, in one message, unless it is bare. The group alone would stop nothing: the agent's table does not see what a bridge passes on.
//
//	ip link set NAME group CUT down
func (p *Ports) cut(_ context.Context, h hold.Hold) error {
	s, err := p.spec(h)
	if err != nil {
		return err
	}
	settings := []rtnl.Setting{rtnl.Group(s.groups().Cut())}
	if !s.Bare {
		settings = append(settings, rtnl.Down())
	}
	l, err := p.locate(s)
	if err == nil {
		err = p.Conn.Do(rtnl.SetLinkAt(l.Index, settings...))
	}
	if err != nil && !errors.Is(err, kernel.ErrNotFound) {
		return fmt.Errorf("cutting off bridge port %s: %w", s.Name, err)
	}
	return nil
}

// release deletes a port, and with it the pod's end.
func (p *Ports) release(_ context.Context, h hold.Hold) error {
	s, err := p.spec(h)
	if err != nil {
		return err
	}
	l, err := p.locate(s)
	if err == nil {
		err = p.remove(s, l.Index)
	}
	if err != nil && !errors.Is(err, kernel.ErrNotFound) {
		return fmt.Errorf("deleting bridge port %s: %w", s.Name, err)
	}
	p.gone(s.Name)
	return nil
}

// remove deletes a port by its index. It succeeds if no link has the index.
func (p *Ports) remove(s *Spec, index int) error {
	answered, err := p.Conn.Delete(rtnl.DelLinkAt(index), index)
	p.lingering.Count(answered, s.Netns)
	if errors.Is(err, kernel.ErrNotFound) {
		return nil
	}
	return err
}

package macvlan

import (
	"context"
	"errors"
	"fmt"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/kinds/inside"
)

// face returns what the macvlan has inside the pod.
func (s *Spec) face() inside.Face {
	return inside.Face{Ifname: s.Ifname, Addresses: s.Addresses, Routes: s.Routes}
}

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
	if err := m.awaitUse(ctx, s); err != nil {
		return err
	}
	m.learn(s, known{parent: k.parent})
	return nil
}

// awaitUse waits until the addresses of a macvlan receive.
func (m *Macvlans) awaitUse(ctx context.Context, s *Spec) error {
	ctx, cancel := context.WithTimeout(ctx, inside.Settling)
	defer cancel()
	p, err := m.enter(ctx, s)
	if errors.Is(err, ns.ErrGone) {
		err = fmt.Errorf("%w: %w", hold.ErrHomeless, err)
	}
	if err == nil {
		defer p.Leave()
		err = p.Wait(ctx, s.face())
	}
	if err != nil {
		return fmt.Errorf("waiting for %s in %s: %w", s.Ifname, s.Netns.Path, err)
	}
	return nil
}

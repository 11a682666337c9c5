package nodetest

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/kinds/shaping"
)

// limits is the shaping kind. The node has every link of another plugin that a spec names.
type limits struct{ *doors }

func (l limits) Kind() hold.Kind {
	return hold.Kind{
		Stage:   hold.Use,
		New:     func() hold.Spec { return new(shaping.Spec) },
		Acquire: l.acquire,
		Verify:  hold.VerifyEach(l.verify),
		Release: hold.Each(l.release),
	}
}

func (l limits) acquire(_ context.Context, h hold.Hold) error {
	s := *h.Spec.(*shaping.Spec)
	return l.step("shaping", "limit "+s.Link, func() error {
		l.limits[s.Link] = s
		return nil
	})
}

func (l limits) verify(_ context.Context, h hold.Hold) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := h.Spec.(*shaping.Spec)
	switch have, there := l.limits[s.Link]; {
	case !there:
		return fmt.Errorf("%s: %w", s, hold.ErrGone)
	case have != *s:
		return fmt.Errorf("%s: %w", s, hold.ErrChanged)
	}
	return nil
}

func (l limits) release(_ context.Context, h hold.Hold) error {
	s := h.Spec.(*shaping.Spec)
	return l.step("shaping", "unlimit "+s.Link, func() error {
		delete(l.limits, s.Link)
		return nil
	})
}

var errNoOthers = errors.New("no other plugin makes links on a node in memory")

// Look returns an error: nobody has made the pod a link.
func (limits) Look(ns.Ref, string, []netip.Addr) (shaping.Sight, error) {
	return shaping.Sight{}, errNoOthers
}

// VerifyPod returns an error, as Look does.
func (limits) VerifyPod(context.Context, *shaping.Spec) error { return errNoOthers }

// Package podgateway is the kind of a pod's default routes that lead through one of its networks, because the pod has asked for that
// (default-route of the network selection, specification of network attachment definitions 1.3, section 4.1.2.1.9).
//
// The default routes of the pod's other interfaces leave the main table. Each goes into a table of its interface (rtnl.Aside), so that the pod's
// own kernel remembers what Release has to put back: no crash can come between a note of them and their end. A rule has the packets from
// the interface's own addresses go by that table: so answers, such as those to a kubelet's probe, leave by the interface by which the
// question has come.
package podgateway

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/berth-net/berth/internal/cni"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/kernel/rtnl"
)

// KindName is the name of the kind, in ledger records too.
const KindName = "podgateway"

// Spec is where a pod's default routes lead.
type Spec struct {
	Netns    ns.Ref       `json:"netns"`
	Ifname   string       `json:"ifname"`   // in the pod
	Gateways []netip.Addr `json:"gateways"` // one of each family at most; the other family's routes are not the hold's
}

// Kind returns KindName.
func (s *Spec) Kind() string { return KindName }

func (s *Spec) String() string {
	texts := make([]string, len(s.Gateways))
	for i, g := range s.Gateways {
		texts[i] = g.String()
	}
	return fmt.Sprintf("default route of the pod at %s via %s dev %s", s.Netns.Path, strings.Join(texts, " and "), s.Ifname)
}

// Families returns the families of the gateways.
func (s *Spec) Families() (f rtnl.Families) {
	for _, g := range s.Gateways {
		f.Add(g)
	}
	return f
}

// Kind returns the kind. At most one hold of a family may be in a pod.
func Kind() hold.Kind {
	return hold.Kind{
		Stage:   hold.Use,
		New:     func() hold.Spec { return new(Spec) },
		Keyed:   true,
		Acquire: acquire,
		Verify:  hold.VerifyEach(verify),
		Release: hold.Each(release),
	}
}

func specOf(h hold.Hold) (*Spec, error) {
	s, ok := h.Spec.(*Spec)
	if !ok {
		return nil, fmt.Errorf("a hold of kind %s is no default route of a pod", h.Spec.Kind())
	}
	return s, nil
}

// inside calls f for each gateway of a spec, in the pod. index is that of the spec's interface; 0: the pod has none of its name. If the
// pod's network namespace is gone, the error is ns.ErrGone.
func (s *Spec) inside(ctx context.Context, f func(p *pod) error) error {
	at, err := s.Netns.Open()
	if err != nil {
		return err
	}
	defer at.Close()
	conn, err := rtnl.OpenFor(ctx, at)
	if err != nil {
		return err
	}
	defer conn.Close()
	var link rtnl.Link
	if err := conn.Do(rtnl.GetLink(s.Ifname, &link)); err != nil && !errors.Is(err, kernel.ErrNotFound) {
		return err
	}
	for _, g := range s.Gateways {
		if err := f(&pod{Conn: conn, ifname: s.Ifname, index: link.Index, gateway: g}); err != nil {
			return err
		}
	}
	return nil
}

// acquire puts the routes of others aside, and then makes the pod's own.
func acquire(ctx context.Context, h hold.Hold) error {
	s, err := specOf(h)
	if err != nil {
		return err
	}
	err = s.inside(ctx, func(p *pod) error {
		if err := p.fits(); err != nil {
			return err
		}
		if err := p.setAside(); err != nil {
			return err
		}
		return p.lead()
	})
	if errors.Is(err, ns.ErrGone) {
		return fmt.Errorf("%w: %w", hold.ErrHomeless, err)
	}
	if err != nil {
		return fmt.Errorf("making the %s: %w", s, err)
	}
	return nil
}

// fits refuses a gateway that the interface cannot reach, before anything changes.
func (p *pod) fits() error {
	if p.index == 0 {
		return fmt.Errorf("interface %s: %w", p.ifname, kernel.ErrNotFound)
	}
	has, err := p.addresses(p.index, p.gateway.IsLinkLocalUnicast())
	if err != nil {
		return err
	}
	if len(has) == 0 {
		family := "IPv4"
		if p.gateway.Is6() {
			family = "IPv6"
		}
		return cni.Errorf(cni.CodeConfig, "invalid request for a default route", "default-route is %s, and interface %s has no address of %s", p.gateway, p.ifname, family)
	}
	return nil
}

// lead makes the default route.
func (p *pod) lead() error {
	err := p.Do(rtnl.AddDefault(p.own()))
	switch {
	case errors.Is(err, kernel.ErrExists): // setAside leaves no other one
		return nil
	case errors.Is(err, kernel.ErrUnreachable), errors.Is(err, kernel.ErrInvalid):
		return cni.Errorf(cni.CodeConfig, "invalid request for a default route", "default-route is %s, which is on no network of interface %s: %v", p.gateway, p.ifname, err)
	}
	return err
}

// verify says hold.ErrGone if the pod lacks the route, and hold.ErrChanged if another default route is beside it or answers have no way.
func verify(ctx context.Context, h hold.Hold) error {
	s, err := specOf(h)
	if err != nil {
		return err
	}
	err = s.inside(ctx, func(p *pod) error {
		seen, err := p.look()
		if err != nil {
			return err
		}
		if !seen.own {
			return hold.ErrGone
		}
		if len(seen.rivals) > 0 {
			return fmt.Errorf("%w: the pod also has %s", hold.ErrChanged, seen.rivals[0])
		}
		missing, err := p.missing(seen.kept)
		if err == nil && len(missing) > 0 {
			err = fmt.Errorf("%w: no rule %s", hold.ErrChanged, missing[0])
		}
		return err
	})
	if errors.Is(err, ns.ErrGone) {
		err = fmt.Errorf("%w: %w", hold.ErrGone, err)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", s, err)
	}
	return nil
}

// release takes the route away, and puts back what acquire has put aside.
func release(ctx context.Context, h hold.Hold) error {
	s, err := specOf(h)
	if err != nil {
		return err
	}
	err = s.inside(ctx, func(p *pod) error {
		if p.index != 0 {
			if err := p.Do(rtnl.DelDefault(p.own())); err != nil && !errors.Is(err, kernel.ErrNotFound) {
				return err
			}
		}
		return p.putBack()
	})
	if err != nil && !errors.Is(err, ns.ErrGone) {
		return fmt.Errorf("taking away the %s: %w", s, err)
	}
	return nil
}

package nodetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/kinds/link"
	"github.com/berth-net/berth/internal/stamp"
)

// links is the link kind. A link is made in four steps, like the real one: it is born, it gets its
// alias, it becomes whole inside the pod, and it becomes live on the host.
type links struct{ *doors }

func (k links) Kind() hold.Kind {
	return hold.Kind{
		Stage:   hold.Use,
		New:     func() hold.Spec { return new(link.Spec) },
		Acquire: k.acquire,
		Verify:  hold.VerifyEach(k.verify),
		Release: k.release,
		Batch:   32,
		Flight:  4,
		Yield:   16,
		Cut:     k.cut,
		Sever:   k.sever,
		Find:    k.find,
	}
}

// of returns a hold's spec. It fails if the link's name is not the one of the hold's owner.
func (k links) of(h hold.Hold) (*link.Spec, error) {
	s := h.Spec.(*link.Spec)
	if want := stamp.Link(k.instance, h.Owner); s.Name != want {
		return nil, fmt.Errorf("link %s is not that of %s", s.Name, h.Owner)
	}
	return s, nil
}

func (k links) acquire(ctx context.Context, h hold.Hold) error {
	s, err := k.of(h)
	if err != nil {
		return err
	}
	k.watched("acquire", h)
	k.mu.Lock()
	pod, gone := k.Node.find(s.Netns)
	l := k.links[s.Name]
	coming := l != nil && l.Group == k.groups.Coming()
	dying := l != nil && k.groups.IsDying(l.Group)
	k.mu.Unlock()
	switch {
	case dying: // its owner is wanted, unless ctx has ended
		done, err := k.claims.claim(ctx, s.Name)
		if err != nil {
			return err
		}
		defer done()
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return k.furnish(h, l, true)
	case l != nil && !coming:
		return k.furnish(h, l, false)
	case gone != nil:
		return fmt.Errorf("%w: %w", hold.ErrHomeless, gone)
	}
	if coming {
		if err := k.step("link", "delete "+s.Name, func() error { k.unlink(l); return nil }); err != nil {
			return err
		}
	}
	l = &Link{Name: s.Name, Group: k.groups.Coming(), MTU: mtuOf(s), MAC: s.HostMAC, Pod: pod, Ifname: s.Ifname}
	err = k.step("link", "add "+s.Name, func() error {
		if pod.isEnded() {
			return hold.ErrHomeless
		}
		if pod.ends[s.Ifname] != nil || k.links[s.Name] != nil {
			return fmt.Errorf("interface %s exists in the pod: %w", s.Ifname, hold.ErrForeign)
		}
		k.index++
		l.Index = k.index
		k.links[s.Name], pod.ends[s.Ifname] = l, l
		return nil
	})
	if err != nil {
		return err
	}
	err = k.step("link", "mark "+s.Name, func() error {
		if k.links[s.Name] != l {
			return fmt.Errorf("link %s: %w", s.Name, hold.ErrGone)
		}
		l.Alias = s.Alias
		return nil
	})
	if err == nil {
		err = k.step("pod", "furnish "+s.Ifname, func() error {
			l.End = End{MAC: s.MAC, MTU: mtuOf(s), Up: true, Addrs: slices.Clone(s.Addresses), Shape: s.Egress}
			return nil
		})
	}
	if err == nil {
		err = errors.Join(k.stays(h.Owner), ctx.Err())
	}
	idle := err != nil // the host's end is down
	if err == nil {
		err = k.furnish(h, l, false)
	}
	if err == nil {
		return nil
	}
	undone := k.step("link", "delete "+s.Name, func() error { k.unlink(l); return nil }) // best effort
	if err = errors.Join(err, undone); idle && undone == nil {
		err = hold.Unused(err)
	}
	return err
}

// stays returns hold.ErrGoing if a deletion of a new link's owner waits, or if nobody can tell.
func (k links) stays(owner hold.ID) error {
	if k.going == nil {
		return nil
	}
	going, err := k.going(owner)
	if err != nil {
		return fmt.Errorf("%w: %w", hold.ErrGoing, err)
	}
	if going {
		return hold.ErrGoing
	}
	return nil
}

// furnish gives the host's end what it lacks. If revive is set, the link may be cut off.
func (k links) furnish(h hold.Hold, l *Link, revive bool) error {
	s := h.Spec.(*link.Spec)
	k.watched("furnish", h)
	return k.step("link", "set "+s.Name, func() error {
		switch {
		case k.links[s.Name] != l:
			return fmt.Errorf("link %s: %w", s.Name, hold.ErrGone)
		case k.groups.IsDying(l.Group) && !revive:
			return errors.New("it is cut off")
		}
		for _, a := range s.Addresses {
			if to := k.ways[a]; to != nil && to != l {
				return fmt.Errorf("the route to %s leads to %s: %w", a, to.Name, hold.ErrForeign)
			}
		}
		l.Alias, l.Group, l.MTU, l.MAC, l.Up = s.Alias, k.groups.Live(), mtuOf(s), s.HostMAC, true
		if s.Ingress != (rtnl.Rate{}) {
			l.Shape = s.Ingress
		}
		if s.Egress != (rtnl.Rate{}) {
			l.Police = s.Egress
		}
		for _, a := range s.Addresses {
			k.ways[a] = l
		}
		return nil
	})
}

func mtuOf(s *link.Spec) int {
	if s.MTU == 0 {
		return link.DefaultMTU
	}
	return s.MTU
}

func (k links) verify(_ context.Context, h hold.Hold) error {
	s, err := k.of(h)
	if err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	l := k.links[s.Name]
	if l == nil {
		return fmt.Errorf("%s: %w", s, hold.ErrGone)
	}
	same := l.Group == k.groups.Live() && stamp.Alike(l.Alias, s.Alias) && l.MAC == s.HostMAC && l.MTU == mtuOf(s) && l.Up &&
		(l.Shape == s.Ingress || s.Ingress == rtnl.Rate{}) && (l.Police == s.Egress || s.Egress == rtnl.Rate{})
	for _, a := range s.Addresses {
		same = same && k.ways[a] == l
	}
	if !same {
		return fmt.Errorf("%s: %w: %+v", s, hold.ErrChanged, l.show())
	}
	return nil
}

func (k links) ListAhead() {}

func (k links) Restamp(s *link.Spec, start int64) error {
	return k.step("link", "restamp "+s.Name, func() error {
		l := k.links[s.Name]
		if l == nil {
			return fmt.Errorf("link %s: %w", s.Name, hold.ErrGone)
		}
		if of, ok := stamp.Parse(l.Alias); ok {
			l.Alias = of.Since(start)
		}
		return nil
	})
}

func (k links) VerifyPodCeded(_ context.Context, h hold.Hold, _ rtnl.Families) error {
	s, err := k.of(h)
	if err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	pod, gone := k.Node.find(s.Netns)
	if gone != nil || pod.ends[s.Ifname] == nil {
		return fmt.Errorf("interface %s: %w", s.Ifname, hold.ErrGone)
	}
	if pod.ends[s.Ifname] != k.links[s.Name] {
		return fmt.Errorf("interface %s: %w: not the other end of link %s", s.Ifname, hold.ErrChanged, s.Name)
	}
	if e := pod.ends[s.Ifname].End; e.MAC != s.MAC || e.MTU != mtuOf(s) || !e.Up || !slices.Equal(e.Addrs, s.Addresses) || e.Shape != s.Egress {
		return fmt.Errorf("interface %s: %w: %+v", s.Ifname, hold.ErrChanged, e)
	}
	return nil
}

// sever sets down links that are cut off.
func (k links) sever(_ context.Context, hs []hold.Hold) error {
	var errs []error
	for _, h := range hs {
		s, err := k.of(h)
		if err == nil {
			k.watched("sever", h)
			err = k.step("link", "set down "+s.Name, func() error {
				if l := k.links[s.Name]; l != nil {
					l.Up = false
				}
				return nil
			})
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// DownDying sets down all links that are cut off.
func (k links) DownDying(context.Context) error {
	return k.step("link", "set all down that are cut off", func() error {
		for _, l := range k.links {
			if k.groups.IsDying(l.Group) {
				l.Up = false
			}
		}
		return nil
	})
}

func (k links) Whole(context.Context) ([]rtnl.Link, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	var all []rtnl.Link
	for _, l := range k.links {
		if seen := l.show(); link.IsWhole(k.groups, seen) {
			all = append(all, seen)
		}
	}
	return all, nil
}

func (k links) find(context.Context, *hold.Look) ([]hold.Hold, error) {
	prefix := "b" + k.instance[:stamp.PrefixLen]
	k.mu.Lock()
	defer k.mu.Unlock()
	var all []hold.Hold
	for name, l := range k.links {
		id, err := hold.ParseID(strings.TrimPrefix(name, prefix))
		if err != nil || !strings.HasPrefix(name, prefix) {
			continue
		}
		all = append(all, hold.Hold{Owner: id, Spec: &link.Spec{Name: name, Alias: l.Alias, MTU: l.MTU, HostMAC: l.MAC}})
	}
	return all, nil
}

package link

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/kernel/rtnl"
)

// acquire makes the link, or completes it. A link that is whole is repaired on
// the host's side alone: what a pod does inside is its own business. One that
// is half-made is made anew; one that is cut off stays so.
func (l *Links) acquire(ctx context.Context, h hold.Hold) error {
	s, err := l.spec(h)
	if err != nil {
		return err
	}
	if err := l.take(ctx, s); err != nil {
		return fmt.Errorf("making link %s for %s in %s: %w", s.Name, s.Ifname, s.Netns.Path, err)
	}
	return nil
}

func (l *Links) take(ctx context.Context, s *Spec) error {
	macs, err := s.check()
	if err != nil {
		return l.unmakeable(s, err)
	}
	pod, err := s.Netns.Open()
	if errors.Is(err, ns.ErrGone) {
		return l.homeless(s, macs, err)
	}
	if err != nil {
		return err
	}
	defer pod.Close()
	if pod.Ref().Same(l.conn.Ref()) {
		return errors.New("this is the node's own network namespace")
	}
	for {
		link, created, err := l.create(s, macs, pod)
		if errors.Is(err, hold.ErrForeign) && l.regain(s, pod) {
			continue
		}
		switch {
		case err != nil:
			return err
		case created:
			return l.complete(ctx, s, macs, pod, link)
		case link.Group != l.groups.Coming():
			return l.repair(s, macs, link)
		}
		// Half-made by an earlier try.
		if err := l.delete(s.Name); err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
}

// unmakeable answers for a spec that does not say enough to make a link: one
// that was adopted, of a pod that is not known well. It ends with its pod.
func (l *Links) unmakeable(s *Spec, why error) error {
	pod, err := s.Netns.Open()
	if err == nil {
		pod.Close()
	}
	if errors.Is(err, ns.ErrGone) && errors.Is(l.conn.Do(rtnl.GetLink(s.Name, new(rtnl.Link))), kernel.ErrNotFound) {
		return fmt.Errorf("%w: %w", hold.ErrHomeless, why)
	}
	return why
}

// homeless answers for a pod whose network namespace cannot be opened. If its
// link is there and not half-made, the namespace is only out of sight.
func (l *Links) homeless(s *Spec, macs ends, why error) error {
	var link rtnl.Link
	err := l.conn.Do(rtnl.GetLink(s.Name, &link))
	switch {
	case err == nil && link.Group != l.groups.Coming():
		return l.repair(s, macs, link)
	case err != nil && !errors.Is(err, kernel.ErrNotFound):
		return err // not seen: that proves nothing
	}
	return fmt.Errorf("%w: %w", hold.ErrHomeless, why)
}

// create makes the pair, both ends down, the host's in the coming group. A
// link of this name that is there already is returned as it is.
func (l *Links) create(s *Spec, macs ends, pod *ns.Netns) (link rtnl.Link, created bool, err error) {
	errs := l.conn.Each(
		rtnl.AddVeth(
			rtnl.End{Name: s.Name, MAC: macs.host, MTU: s.mtu()}, l.groups.Coming(),
			rtnl.End{Name: s.Ifname, MAC: macs.pod, MTU: s.mtu()}, pod.Fd()),
		rtnl.GetLink(s.Name, &link))
	add, get := errs[0], errs[1]
	switch {
	case add == nil && get == nil:
		return link, true, nil
	case add == nil:
		return link, false, errors.Join(get, l.delete(s.Name))
	case !errors.Is(add, kernel.ErrExists):
		return link, false, add
	case errors.Is(get, kernel.ErrNotFound): // so it is the other name
		return link, false, fmt.Errorf("interface %s exists in the pod: %w", s.Ifname, hold.ErrForeign)
	}
	return link, false, get
}

// complete brings a new pair up. The pod's side comes first, so that a link
// which is in the live group is whole but for the host's side, which Verify
// sees and repair completes. The host's end comes up last: until then there is
// no carrier, and nothing the pod's end does has to wait for the node's routes.
func (l *Links) complete(ctx context.Context, s *Spec, macs ends, pod *ns.Netns, link rtnl.Link) (err error) {
	defer func() {
		if err != nil { // best effort: the engine releases what failed as well
			err = errors.Join(err, l.delete(s.Name))
		}
	}()
	inside, err := furnishPod(s, macs, pod, link.Peer)
	if err != nil {
		return fmt.Errorf("in the pod: %w", err)
	}
	defer inside.Close()
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := l.furnishHost(s, macs, link, nothing()); err != nil {
		return err
	}
	return settle(ctx, s, inside)
}

// settling is how long a pod's addresses may take to be usable: a few
// microseconds, unless the machine has much else to do.
const settling = 30 * time.Second

// settle waits until the pod's first packet will be answered: until the pod's
// end can send, which GetLink sees to, and its IPv6 addresses receive. The
// kernel has most often done the latter meanwhile.
func settle(ctx context.Context, s *Spec, inside *rtnl.Conn) error {
	ctx, cancel := context.WithTimeout(ctx, settling)
	defer cancel()
	locals := make([]bool, len(s.Addresses))
	rs := []rtnl.Request{rtnl.GetLink(s.Ifname, new(rtnl.Link))}
	for i, a := range s.Addresses {
		rs = append(rs, rtnl.IsLocal(a, &locals[i]))
	}
	for pause := 50 * time.Microsecond; ; pause = min(2*pause, 10*time.Millisecond) {
		errs := inside.Each(rs...)
		for _, err := range errs {
			if err != nil && !errors.Is(err, kernel.ErrUnreachable) {
				return fmt.Errorf("in the pod: %w", err)
			}
		}
		i := slices.Index(locals, false)
		if i < 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("in the pod: address %s does not receive yet: %w", s.Addresses[i], context.Cause(ctx))
		case <-time.After(pause):
		}
	}
}

// regain gives the host's end its name back, if somebody has renamed it: the
// pod's interface says which link that is, and alias and MAC whose it is.
func (l *Links) regain(s *Spec, pod *ns.Netns) bool {
	var inside *rtnl.Conn
	if err := pod.Do(func() (err error) { inside, err = rtnl.Here(); return err }); err != nil {
		return false
	}
	defer inside.Close()
	var end, link rtnl.Link
	if inside.Do(rtnl.GetLink(s.Ifname, &end)) != nil || end.MAC != s.MAC || end.Peer == 0 {
		return false
	}
	if l.conn.Do(rtnl.GetLinkAt(end.Peer, &link)) != nil || link.Alias != s.Alias || link.MAC != s.HostMAC {
		return false
	}
	err := l.conn.Do(rtnl.Rename(link.Index, s.Name))
	if errors.Is(err, kernel.ErrBusy) { // up, on an older kernel: repair sets it up again
		err = l.conn.Do(rtnl.SetLink(link.Name, rtnl.Down()), rtnl.Rename(link.Index, s.Name))
	}
	return err == nil
}

// repair brings the host's side of a link back to what its spec says.
func (l *Links) repair(s *Spec, macs ends, link rtnl.Link) error {
	if l.groups.IsDying(link.Group) {
		return fmt.Errorf("it is cut off (group %d)", link.Group)
	}
	seen, err := l.look(s)
	if err != nil {
		return err
	}
	return l.furnishHost(s, macs, link, seen)
}

// delete deletes a link by its name; none is success.
func (l *Links) delete(name string) error {
	if err := l.conn.Do(rtnl.DelLink(name)); !errors.Is(err, kernel.ErrNotFound) {
		return err
	}
	return nil
}

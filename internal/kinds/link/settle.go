package link

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/turn"
)

const (
	// settling is how long settle waits, at most, until a pod can use its addresses. The kernel needs a
	// few microseconds, unless the machine is busy, or the pod interferes: a pod may delete the policy
	// rule by which it receives packets to its own addresses.
	settling = 30 * time.Second
	// glances is how often Acquire looks whether the pod can use its addresses: at once, after 50 µs
	// and after another 100 µs. Nearly always the pod can by then, and Settle has nothing to do.
	glances = 3
)

// settle waits until the pod's addresses receive, so that its first packet will be
// answered. settle does nothing unless Acquire has made the link and has not seen that the addresses
// receive. If the pod's network namespace is gone, the error is hold.ErrHomeless.
func (l *Links) settle(ctx context.Context, h hold.Hold) error {
	s, err := l.spec(h)
	if err != nil || !l.memory.get(s.Name).unsettled {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, settling)
	defer cancel()
	if err := waitInside(ctx, s); err != nil {
		return fmt.Errorf("waiting for %s in %s: %w", s.Ifname, s.Netns.Path, err)
	}
	l.memory.settling(s.Name, false)
	return nil
}

func waitInside(ctx context.Context, s *Spec) error {
	pod, err := s.Netns.Open()
	if errors.Is(err, ns.ErrGone) {
		return fmt.Errorf("%w: %w", hold.ErrHomeless, err)
	}
	if err != nil {
		return err
	}
	defer pod.Close()
	var inside *rtnl.Conn
	if err := pod.Do(func() (err error) { inside, err = rtnl.Here(); return err }); err != nil {
		return err
	}
	defer inside.Close()
	dumb, err := unusable(s, inside)
	if err != nil || len(dumb) == 0 {
		return err
	}
	// From here on the pod decides how long waitInside takes, so other callers must not wait for it.
	ctx, over, _ := turn.Aside(ctx)
	defer over()
	begun := time.Now()
	for pause := 50 * time.Microsecond; ; pause = min(2*pause, max(10*time.Millisecond, time.Since(begun)/16)) {
		select {
		case <-ctx.Done():
			return fmt.Errorf("address %s does not receive yet: %w", dumb[0], context.Cause(ctx))
		case <-time.After(pause):
		}
		if dumb, err = unusable(s, inside); err != nil || len(dumb) == 0 {
			return err
		}
	}
}

// glanceInside reports whether the pod's addresses already receive. A pod cannot make glanceInside take
// long.
func glanceInside(s *Spec, inside *rtnl.Conn) (settled bool, err error) {
	for n := range glances {
		time.Sleep(time.Duration(n) * 50 * time.Microsecond)
		dumb, err := unusable(s, inside)
		if err != nil || len(dumb) == 0 {
			return err == nil, err
		}
	}
	return false, nil
}

// unusable returns the pod's addresses that do not receive yet. IPv6 addresses receive a
// little after they are added; mostly the kernel has got so far when unusable asks. After unusable the
// pod's end can send, because GetLink makes the kernel bring the end's carrier up to date.
func unusable(s *Spec, inside *rtnl.Conn) ([]netip.Addr, error) {
	locals := make([]bool, len(s.Addresses))
	rs := []rtnl.Request{rtnl.GetLink(s.Ifname, new(rtnl.Link))}
	for i, a := range s.Addresses {
		rs = append(rs, rtnl.IsLocal(a, &locals[i]))
	}
	for _, err := range inside.Each(rs...) {
		if err != nil && !errors.Is(err, kernel.ErrUnreachable) {
			return nil, fmt.Errorf("in the pod: %w", err)
		}
	}
	if !slices.Contains(locals, false) {
		return nil, nil
	}
	var dumb []netip.Addr
	for i, a := range s.Addresses {
		if !locals[i] {
			dumb = append(dumb, a)
		}
	}
	return dumb, nil
}

package bridgeport

import (
	"context"
	"errors"
	"fmt"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/stamp"
)

// repair brings a whole port back to what its spec says: name, alias, MAC, bridge, how the bridge treats it, group, and up. A port that was cut off although
// its owner is wanted comes back, unless ctx has ended: the engine ends ctx before it cuts a hold off, and waits until Acquire has returned.
// A bridge that goes leaves its ports up, and then what the pod sends would reach the node itself: until the bridge is back, repair has the port down.
func (p *Ports) repair(ctx context.Context, s plan, l rtnl.Link) error {
	b, err := p.Bridge(s.Bridge)
	if err != nil {
		if l.Master == 0 && l.Up {
			err = errors.Join(err, p.Conn.Do(rtnl.SetLinkAt(l.Index, rtnl.Down())))
		}
		return err
	}
	if err := ctx.Err(); l.Group == s.groups().Cut() && err != nil {
		return fmt.Errorf("the port is cut off (group %d): %w", l.Group, err)
	}
	if l.Name != s.Name {
		err := p.Conn.Do(rtnl.Rename(l.Index, s.Name))
		if errors.Is(err, kernel.ErrExists) {
			err = fmt.Errorf("%w: the port is called %s, and another link has its name: %w", hold.ErrForeign, l.Name, err)
		}
		if err != nil {
			return err
		}
	}
	if l.Master != b.Index { // down, because the bridge would pass everything on until guard has ended
		if err := p.Conn.Do(rtnl.SetLinkAt(l.Index, rtnl.Down()), rtnl.SetLinkAt(l.Index, rtnl.Master(b.Index))); err != nil {
			return err
		}
		l.Up = false
	}
	var of rtnl.PortOf
	if err := p.Conn.Do(rtnl.GetPort(l.Index, &of)); err != nil {
		return err
	}
	if err := p.guard(s, b, of); err != nil {
		return err
	}
	var settings []rtnl.Setting
	if alias := p.alias(s.Spec); l.Alias != alias {
		settings = append(settings, rtnl.Alias(alias))
	}
	if l.MAC != s.HostMAC {
		settings = append(settings, rtnl.MAC(s.host))
	}
	if l.Group != s.groups().Live() {
		settings = append(settings, rtnl.Group(s.groups().Live()))
	}
	if !l.Up {
		settings = append(settings, rtnl.Up())
	}
	if len(settings) == 0 {
		return nil
	}
	return p.Conn.Do(rtnl.SetLinkAt(l.Index, settings...), rtnl.GetLinkAt(l.Index, &l)) // then the port's carrier is up to date, so that it passes frames
}

// Restamp writes into a port's alias that the port is there for an ADD that began at start (CLOCK_BOOTTIME in nanoseconds). If the port is
// gone with the pod's network namespace, the error is hold.ErrHomeless.
func (p *Ports) Restamp(s *Spec, start int64) error {
	of, ok := stamp.ParsePort(s.Alias)
	if !ok {
		return nil
	}
	l, err := p.locate(s)
	if err == nil { // by index, since somebody may give its name to another link
		err = p.Conn.Do(rtnl.SetLinkAt(l.Index, rtnl.Alias(of.Since(start))))
	}
	if errors.Is(err, kernel.ErrNotFound) {
		if pod, open := s.Netns.Open(); open == nil {
			pod.Close()
		} else if errors.Is(open, ns.ErrGone) {
			err = fmt.Errorf("%w: %w", hold.ErrHomeless, err)
		}
	}
	if err != nil {
		return fmt.Errorf("changing the alias of bridge port %s: %w", s.Name, err)
	}
	return nil
}

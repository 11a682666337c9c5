package bridgeport

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/kinds/inside"
	"github.com/berth-net/berth/internal/stamp"
)

// verify compares a port with its spec. It looks at the node alone, and so does a glance: each port costs four questions to the kernel,
// and one or two more if its bridge filters VLANs.
func (p *Ports) verify(_ context.Context, h hold.Hold) error {
	s, err := p.spec(h)
	if err != nil {
		return err
	}
	_, d, half, err := p.compare(s)
	if err != nil {
		return err
	}
	return changed(s, d, half)
}

func changed(s *Spec, d []string, half bool) error {
	if len(d) == 0 {
		return nil
	}
	err := error(&hold.ChangedError{What: s.String(), Differences: d})
	if half {
		return kernel.As(hold.ErrHalfMade, err)
	}
	return err
}

// compare returns what of a port differs from its spec. If there is no port the error is hold.ErrGone.
func (p *Ports) compare(s *Spec) (l rtnl.PortOf, d []string, half bool, err error) {
	at, err := p.locate(s)
	if err == nil {
		err = p.Conn.Do(rtnl.GetPort(at.Index, &l))
	}
	if errors.Is(err, kernel.ErrNotFound) {
		return l, nil, false, fmt.Errorf("%s: %w: %w", s, hold.ErrGone, err)
	}
	if err != nil {
		return l, nil, false, fmt.Errorf("looking at %s: %w", s, err)
	}
	differ := func(format string, args ...any) { d = append(d, fmt.Sprintf(format, args...)) }
	if l.Name != s.Name {
		differ("renamed to %s", l.Name)
	}
	switch g := s.groups(); l.Group {
	case g.Live():
	case g.Coming():
		half = true
		differ("half-made (group %d)", l.Group)
	case g.Cut():
		differ("cut off (group %d)", l.Group)
	default:
		differ("group %d, not %d", l.Group, g.Live())
	}
	if !l.Up {
		differ("down")
	}
	if !stamp.Alike(l.Alias, s.Alias) {
		differ("alias %q, not %q", l.Alias, s.Alias)
	}
	if l.MAC != s.HostMAC {
		differ("mac %s, not %s", l.MAC, s.HostMAC)
	}
	on, err := p.onBridge(s, l)
	if err != nil {
		return l, nil, false, fmt.Errorf("looking at %s: %w", s, err)
	}
	return l, append(d, on...), half, nil
}

// onBridge returns what differs of how the bridge treats a port.
func (p *Ports) onBridge(s *Spec, l rtnl.PortOf) (d []string, err error) {
	b, err := p.Bridge(s.Bridge)
	if errors.Is(err, kernel.ErrNotFound) || errors.Is(err, kernel.ErrInvalid) {
		return []string{err.Error()}, nil
	}
	if err != nil {
		return nil, err
	}
	if l.Master != b.Index {
		return []string{fmt.Sprintf("no port of bridge %s", s.Bridge)}, nil
	}
	if l.Port != s.port() {
		d = append(d, fmt.Sprintf("port %+v, not %+v", l.Port, s.port()))
	}
	want, err := s.check()
	if err != nil {
		return d, err
	}
	known, err := p.inUse(want, b, l)
	if i := slices.IndexFunc(known, func(k rtnl.PortMAC) bool { return !isOwn(k, l) }); i >= 0 {
		d = append(d, fmt.Sprintf("bridge %s does not know %s behind the port%s", s.Bridge, s.MAC, inVLAN(known[i].VLAN)))
	}
	return d, err
}

// VerifyPod compares all of a port and of the pod's end with its spec, for CHECK. It returns what Verify returns. It ignores addresses and
// routes that the pod has besides.
func (p *Ports) VerifyPod(ctx context.Context, h hold.Hold) error {
	s, err := p.spec(h)
	if err != nil {
		return err
	}
	l, d, half, err := p.compare(s)
	if err != nil {
		return err
	}
	in, err := p.inPod(ctx, s, l.Link)
	if err != nil {
		return fmt.Errorf("looking at %s in %s: %w", s.Ifname, s.Netns.Path, err)
	}
	return changed(s, append(d, in...), half)
}

// inPod returns what differs of the pod's end of a port.
func (p *Ports) inPod(ctx context.Context, s *Spec, port rtnl.Link) (d []string, err error) {
	differ := func(format string, args ...any) { d = append(d, fmt.Sprintf(format, args...)) }
	pod, err := inside.Enter(ctx, s.Netns, nil)
	if errors.Is(err, ns.ErrGone) {
		return nil, fmt.Errorf("%w: %w", hold.ErrGone, err)
	}
	if err != nil {
		return nil, err
	}
	defer pod.Leave()
	l, err := p.end(pod, port)
	if errors.Is(err, errElsewhere) {
		differ("%v", err)
		return d, nil
	}
	if err != nil {
		return nil, err
	}
	if l.Name != s.Ifname {
		differ("the pod's end is called %s", l.Name)
	}
	if l.MAC != s.MAC {
		differ("mac %s in the pod, not %s", l.MAC, s.MAC)
	}
	if s.MTU != 0 && l.MTU != s.MTU {
		differ("mtu %d, not %d", l.MTU, s.MTU)
	}
	in, err := pod.Differences(s.face(), l)
	return append(d, in...), err
}

// errElsewhere says that the pod's end of a port is not in the pod.
var errElsewhere = errors.New("the pod's end is in another network namespace")

// end reads the pod's end of a port. If it is not in the pod, the error is errElsewhere.
func (p *Ports) end(pod *inside.Pod, port rtnl.Link) (l rtnl.Link, err error) {
	var here int
	if err := p.Conn.Do(rtnl.NetnsID(pod.At.Fd(), &here)); err != nil {
		return l, err
	}
	if port.PeerNetns != here {
		return l, errElsewhere
	}
	return l, pod.Conn.Do(rtnl.GetLinkAt(port.Peer, &l))
}

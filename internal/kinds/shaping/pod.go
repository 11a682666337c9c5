package shaping

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/kernel/rtnl"
)

// Sight is a pod's interface that another plugin has made, as the kernel shows it.
type Sight struct {
	Pod  rtnl.Link // in the pod
	Host rtnl.Link // its other end, on the node; the zero Link: it has none there. Master is a bridge, or 0
	By   []int     // the indices of the links by which the node reaches the addresses that were asked for; 0: by none
}

// Look looks for a pod's interface and its end on the node. It believes the kernel about both, and no plugin's result: a veth of the
// node says in which network namespace its other end is, and no pod can forge that. If the pod has no such interface the error is
// kernel.ErrNotFound.
func (l *Limits) Look(netns ns.Ref, ifname string, addrs []netip.Addr) (s Sight, err error) {
	at, err := netns.Open()
	if err != nil {
		return s, err
	}
	defer at.Close()
	pod, err := rtnl.Open(at)
	if err != nil {
		return s, err
	}
	defer pod.Close()
	if err := pod.Do(rtnl.GetLink(ifname, &s.Pod)); err != nil {
		return s, err
	}
	s.By = make([]int, len(addrs))
	for i, a := range addrs {
		var way rtnl.Way
		err := l.conn.Do(rtnl.GetWay(a, netip.Addr{}, 0, &way))
		switch {
		case err == nil && !way.Local:
			s.By[i] = way.Index
		case err != nil && !errors.Is(err, kernel.ErrUnreachable) && !errors.Is(err, kernel.ErrNotFound):
			return s, err
		}
	}
	if s.Pod.Peer <= 0 || !s.Pod.Veth {
		return s, nil
	}
	var host rtnl.PortOf
	id := rtnl.NoNetns
	err = l.conn.Do(rtnl.GetPort(s.Pod.Peer, &host)) // first, so that the namespace has a number
	if err == nil {
		err = l.conn.Do(rtnl.NetnsID(at.Fd(), &id))
	}
	switch {
	case errors.Is(err, kernel.ErrNotFound):
		return s, nil
	case err != nil:
		return s, err
	case host.EndsAt(s.Pod.Index, id):
		s.Host = host.Link
	}
	return s, nil
}

// inPod calls do with the pod's end of a spec's link.
func (s *Spec) inPod(do func(pod *rtnl.Conn, index int) error) error {
	at, err := s.Netns.Open()
	if err != nil {
		return fmt.Errorf("looking for %s in the pod: %w", s.Ifname, err)
	}
	defer at.Close()
	pod, err := rtnl.Open(at)
	if err != nil {
		return err
	}
	defer pod.Close()
	var end rtnl.Link
	if err := pod.Do(rtnl.GetLink(s.Ifname, &end)); err != nil {
		return err
	}
	if s.Index != 0 && end.Peer != s.Index {
		return fmt.Errorf("%s in the pod is not the other end of %s: %w", s.Ifname, s.Link, kernel.ErrNotFound)
	}
	return do(pod, end.Index)
}

// VerifyPod compares the pod's end of a link with its spec, for CHECK. It returns nil; hold.ErrGone or hold.ErrChanged with what differs;
// or the reason why it could not look.
func (l *Limits) VerifyPod(_ context.Context, s *Spec) error {
	var have rtnl.Qdisc
	err := s.inPod(func(pod *rtnl.Conn, index int) error {
		if s.Egress == (rtnl.Rate{}) {
			return nil
		}
		return pod.GetQdisc(index, &have)
	})
	switch {
	case errors.Is(err, kernel.ErrNotFound), errors.Is(err, ns.ErrGone):
		return fmt.Errorf("%s in the pod: %w: %w", s.Ifname, hold.ErrGone, err)
	case err != nil:
		return err
	case have.Shape != s.Egress:
		return &hold.ChangedError{What: s.Ifname + " in the pod", Differences: []string{fmt.Sprintf("sends with %s, not %s", have, s.Egress)}}
	}
	return nil
}

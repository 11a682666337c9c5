package link

import (
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel/rtnl"
)

// Each end of a link limits what it sends itself: the limits go with the pair, and neither limit needs
// a further device. A limit of what an end receives would need such a device. Acquire sets the limits
// while the ends are down, which costs the kernel next to nothing.
//
// The pod's end is the pod's own: a pod that may change its interfaces can take its limit away, and a
// pod that may open packet sockets can send past the limit. So the host's end drops what comes in above
// that rate. The host's end delays nothing, so a drop alone would hold TCP far below the rate. A sender
// that keeps to the limit of the pod's end loses nothing at the host's end. The host's end drops by a
// BPF program. A kernel that has no such programs, or does not let the agent load them, as in a user
// namespace, leaves a pod with the limit of its own end, and the agent says so.

// shape returns the requests that limit what a host's end sends. If a view shows that limit already,
// shape returns none.
func (s *Spec) shape(seen view, index int) []rtnl.Request {
	have := seen.shapes[index]
	if s.Ingress == (rtnl.Rate{}) || have.Shape == s.Ingress {
		return nil
	}
	rs := []rtnl.Request{rtnl.Shape(index, s.Ingress)}
	if have.InWay {
		rs = append([]rtnl.Request{rtnl.Unshape(index)}, rs...)
	}
	return rs
}

// isShaped reports whether the host's end of a link has a limit of what it sends.
func isShaped(h hold.Hold) bool {
	s, ok := h.Spec.(*Spec)
	return ok && s.Ingress != rtnl.Rate{}
}

// police limits what a host's end lets in from the pod, unless a view shows that limit already, or the
// kernel cannot do it.
func (l *Links) police(s *Spec, seen view, index int) error {
	if s.Egress == (rtnl.Rate{}) || seen.policed[index] == s.Egress {
		return nil
	}
	spent := l.memory.get(s.Name).last != 0 // others have deleted the link before: a pod must not get a new burst by deleting its end
	return l.policer.Police(index, s.Egress, s.mtu(), spent)
}

// limited returns the indices of the holds' links that have a limit of what they let in.
func (v view) limited(hs []hold.Hold) (indices []int) {
	for _, h := range hs {
		s, ok := h.Spec.(*Spec)
		if !ok || s.Egress == (rtnl.Rate{}) {
			continue
		}
		if link, there := v.links[s.Name]; there {
			indices = append(indices, link.Index)
		}
	}
	return indices
}

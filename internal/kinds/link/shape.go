package link

import (
	"errors"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel"
	"github.com/berth-net/berth/internal/kernel/rtnl"
)

// A link's rates are limited at both ends by what the end sends: the limits go with the
// pair, and neither limit needs a further device. A limit of what an end receives would need one.
// They are set while the ends are down, which costs the kernel next to nothing.
//
// The pod's end is the pod's own: a pod that may change its interfaces can take its limit away, and
// one that may open packet sockets can send past it. So the host's end drops what comes in above
// that rate. It delays nothing, so that it alone would hold TCP far below the rate. A sender that
// keeps to the limit of the pod's end loses nothing at the host's end. A kernel that has no such
// programs, or does not let the agent load them, as in a user namespace, leaves a pod with the
// limit of its own end, and the agent says so.

// shape returns the requests that limit what a host's end sends, if a view does not have it so.
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

// police limits what a host's end lets in from the pod, if a view does not have it so, and if the
// kernel can.
func (l *Links) police(s *Spec, seen view, index int) error {
	if s.Egress == (rtnl.Rate{}) || seen.policed[index] == s.Egress || !l.polices() {
		return nil
	}
	spent := l.memory.get(s.Name).last != 0 // it was lost: deleting its end must not give a pod a new burst
	err := l.conn.Police(index, s.Egress, s.mtu(), spent)
	if l.refused(err) {
		return nil
	}
	return err
}

// polices reports whether the kernel can limit what links let in. It asks once; if the kernel
// cannot, the next agent asks again.
func (l *Links) polices() bool {
	l.asked.Do(func() { l.refused(rtnl.CanPolice()) })
	return !l.lawless.Load()
}

// refused reports whether err says that the kernel can limit no link. Unpoliced is told once.
func (l *Links) refused(err error) bool {
	if !errors.Is(err, kernel.ErrUnsupported) && !errors.Is(err, kernel.ErrPermission) {
		return false
	}
	if !l.lawless.Swap(true) {
		l.unpoliced(err)
	}
	return true
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

// letsIn says what a host's end lets in.
func letsIn(r rtnl.Rate) string {
	if r == (rtnl.Rate{}) {
		return "all that the pod sends"
	}
	return r.String()
}

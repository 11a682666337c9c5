// Package shaping is the kind of the limits on a pod's link that another plugin has made: how fast the pod may be reached, and how
// fast it may send. The link itself is never Berth's: Berth neither makes nor deletes it, sets it neither up nor down, and does not
// find it without the ledger. A hold without limits only says whether the link is still there.
//
// A link is found by its index, which the kernel gives no other link of the network namespace, and has to have its name as well,
// since the indices begin anew with each boot. A link that is gone, or another link with the index, has no limits to give back. A
// hold whose link is gone can never be taken again: its pod has lost the interface (hold.ErrHomeless).
//
// The limits are those of kinds/link: each end sends by a token bucket of its own, and the node's end drops what comes in above the
// rate. The kernel takes them away with the link.
package shaping

import (
	"context"
	"errors"
	"fmt"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/kernel/rtnl"
)

// KindName is the name of the kind.
const KindName = "shaping"

// Spec is a pod's link of another plugin, with its limits.
type Spec struct {
	Link    string    `json:"link"`  // the node's end; "": the interface has none there, and no limits
	Index   int       `json:"index"` // of the node's end; 0: none
	Netns   ns.Ref    `json:"netns"`
	Ifname  string    `json:"ifname"`  // the pod's end
	MTU     int       `json:"mtu"`     // bytes
	Ingress rtnl.Rate `json:"ingress"` // of what the pod gets; zero: no limit
	Egress  rtnl.Rate `json:"egress"`  // of what the pod sends; zero: no limit
}

// Kind returns KindName.
func (s *Spec) Kind() string { return KindName }

func (s *Spec) String() string {
	if s.Index == 0 {
		return fmt.Sprintf("limits of %s in %s, which has no end on the node", s.Ifname, s.Netns.Path)
	}
	return fmt.Sprintf("limits of link %s (index %d)", s.Link, s.Index)
}

// Options of New.
type Options struct {
	Conn *rtnl.Conn // to the node's network namespace
	// Unpoliced is called once, with the reason, if the kernel cannot drop what a pod sends above its rate. It must not block.
	Unpoliced func(error)
}

// Limits makes, checks and takes away the limits of links.
type Limits struct {
	conn    *rtnl.Conn
	policer *Policer
}

// New returns the limits of the links in a network namespace.
func New(o Options) *Limits { return &Limits{o.Conn, NewPolicer(o.Conn, o.Unpoliced)} }

// Kind returns the kind of these limits.
func (l *Limits) Kind() hold.Kind {
	return hold.Kind{
		Stage:   hold.Use,
		New:     func() hold.Spec { return new(Spec) },
		Acquire: l.acquire,
		Verify:  hold.VerifyEach(l.verify),
		Release: hold.Each(l.release),
	}
}

func specOf(h hold.Hold) (*Spec, error) {
	s, ok := h.Spec.(*Spec)
	if !ok {
		return nil, fmt.Errorf("a hold of kind %s has no limits", h.Spec.Kind())
	}
	return s, nil
}

// find finds the node's end of a spec's link. If it is gone the error is kernel.ErrNotFound.
func (l *Limits) find(s *Spec) error {
	if s.Index == 0 {
		return nil // there is nothing to find
	}
	var link rtnl.Link
	if err := l.conn.Do(rtnl.GetLinkAt(s.Index, &link)); err != nil {
		return err
	}
	if link.Name != s.Link {
		return fmt.Errorf("link %d is %s: %w", s.Index, link.Name, kernel.ErrNotFound)
	}
	return nil
}

func (l *Limits) acquire(_ context.Context, h hold.Hold) error {
	s, err := specOf(h)
	if err != nil {
		return err
	}
	err = l.find(s)
	if err == nil {
		err = l.limit(s)
	}
	if errors.Is(err, kernel.ErrNotFound) || errors.Is(err, ns.ErrGone) {
		return fmt.Errorf("%s: %w: %w", s, hold.ErrHomeless, err)
	}
	return err
}

func (l *Limits) limit(s *Spec) error {
	if err := shape(l.conn, s.Index, s.Ingress); err != nil {
		return fmt.Errorf("limiting what link %s sends: %w", s.Link, err)
	}
	if s.Egress == (rtnl.Rate{}) {
		return nil
	}
	have, err := l.conn.Policed(s.Index)
	if err == nil && have[s.Index] != s.Egress {
		err = l.policer.Police(s.Index, s.Egress, s.MTU, false)
	}
	if err != nil {
		return fmt.Errorf("limiting what link %s lets in: %w", s.Link, err)
	}
	return s.inPod(func(pod *rtnl.Conn, index int) error { return shape(pod, index, s.Egress) })
}

// shape limits what an end sends, unless it does so already. It leaves a queueing discipline alone that another program has given the
// end.
func shape(c *rtnl.Conn, index int, r rtnl.Rate) error {
	if r == (rtnl.Rate{}) {
		return nil
	}
	var have rtnl.Qdisc
	switch err := c.GetQdisc(index, &have); {
	case err != nil:
		return err
	case have.Shape == r:
		return nil
	case !have.Ours && have.Kind != "" && have.Kind != noqueue:
		return fmt.Errorf("%w: it has the discipline %s", hold.ErrForeign, have.Kind)
	case have.InWay:
		if err := c.Do(rtnl.Unshape(index)); err != nil && !errors.Is(err, kernel.ErrNotFound) {
			return err
		}
	}
	return c.Do(rtnl.Shape(index, r))
}

// noqueue is the discipline of a veth that nobody has given another one.
const noqueue = "noqueue"

func (l *Limits) verify(_ context.Context, h hold.Hold) error {
	s, err := specOf(h)
	if err != nil {
		return err
	}
	if err := l.find(s); errors.Is(err, kernel.ErrNotFound) {
		return fmt.Errorf("link %s (index %d): %w", s.Link, s.Index, hold.ErrGone)
	} else if err != nil {
		return err
	}
	var d []string
	limits, missing := 0, 0
	if s.Ingress != (rtnl.Rate{}) {
		var have rtnl.Qdisc
		if err := l.conn.GetQdisc(s.Index, &have); err != nil {
			return err
		}
		if limits++; !have.Ours {
			missing++
		}
		if have.Shape != s.Ingress {
			d = append(d, fmt.Sprintf("sends with %s, not %s", have, s.Ingress))
		}
	}
	if s.Egress != (rtnl.Rate{}) && l.policer.Polices() {
		have, err := l.conn.Policed(s.Index)
		if err != nil {
			return err
		}
		if limits++; have[s.Index] == (rtnl.Rate{}) {
			missing++
		}
		if have[s.Index] != s.Egress {
			d = append(d, fmt.Sprintf("lets in %s, not %s", LetsIn(have[s.Index]), s.Egress))
		}
	}
	switch {
	case len(d) == 0:
		return nil
	case missing == limits:
		return fmt.Errorf("%s: %w", s, hold.ErrGone)
	}
	return &hold.ChangedError{What: s.String(), Differences: d}
}

// release takes the limits away. The pod's end keeps its limit if the pod cannot be entered: it ends with the pod.
func (l *Limits) release(_ context.Context, h hold.Hold) error {
	s, err := specOf(h)
	if err != nil {
		return err
	}
	err = l.find(s)
	if err == nil && s.Ingress != (rtnl.Rate{}) {
		err = unshape(l.conn, s.Index)
	}
	if err == nil && s.Egress != (rtnl.Rate{}) {
		err = l.conn.Unpolice(s.Index)
		_ = s.inPod(unshape)
	}
	if err != nil && !errors.Is(err, kernel.ErrNotFound) {
		return fmt.Errorf("releasing the %s: %w", s, err)
	}
	return nil
}

// unshape takes away what shape has made.
func unshape(c *rtnl.Conn, index int) error {
	var have rtnl.Qdisc
	if err := c.GetQdisc(index, &have); err != nil || !have.Ours {
		return err
	}
	return c.Do(rtnl.Unshape(index))
}

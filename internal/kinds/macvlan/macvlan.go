package macvlan

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/kinds/inside"
)

// Options of New.
type Options struct {
	Conn     *rtnl.Conn // to the node's network namespace, which has the parents
	At       *ns.Netns  // the node's network namespace
	Instance string
	// Deletions sends the requests that delete macvlans (rtnl.Conn.DeleteBy). nil: the Conn itself.
	Deletions rtnl.Sender
	// Going reports whether somebody has asked for an owner's release in a way that the ledger does not know of
	// yet. Such an owner's new macvlan stays down. If Going cannot tell, it returns why, and the macvlan stays
	// down as well. nil: nobody has.
	Going func(hold.ID) (bool, error)
}

// Macvlans makes, checks, cuts off and deletes the macvlans of an instance.
type Macvlans struct {
	Options
	lingering inside.Lingering
	mu        sync.Mutex
	known     map[string]known // by the texts of specs, and of IPs that were all there
}

// known is what this agent knows of a macvlan that it has seen whole.
type known struct {
	parent    int  // the index that the link of the parent's name had
	unsettled bool // nobody has seen yet that all of the macvlan's addresses receive
}

// New returns the macvlans of an instance.
func New(o Options) *Macvlans {
	if o.Going == nil {
		o.Going = func(hold.ID) (bool, error) { return false, nil }
	}
	return &Macvlans{Options: o, known: map[string]known{}}
}

// Kind returns the kind of these macvlans.
func (m *Macvlans) Kind() hold.Kind {
	return hold.Kind{
		Stage:   hold.Use,
		New:     func() hold.Spec { return new(Spec) },
		Acquire: m.acquire,
		Settle:  m.settle,
		Verify:  m.verify,
		Release: hold.Each(m.release),
		Cut:     m.cut,
		Find:    m.find,
	}
}

// spec returns a hold's spec. It refuses a spec whose alias does not name the hold's owner: such a macvlan belongs
// to somebody else. The instance may be another one than the agent's, because an agent that lost its instance has
// got a new one.
func (m *Macvlans) spec(h hold.Hold) (*Spec, error) {
	s, ok := specIn(h)
	if !ok {
		return nil, fmt.Errorf("a hold of kind %s is not a macvlan", h.Spec.Kind())
	}
	if mark, ok := parse(s.Alias); !ok || mark.owner != h.Owner || mark.ifname != s.Ifname {
		return nil, fmt.Errorf("a macvlan %s with the alias %.300q does not belong to %s", s.Ifname, s.Alias, h.Owner)
	}
	return s, nil
}

// specIn returns the macvlan that a hold is of.
func specIn(h hold.Hold) (*Spec, bool) {
	switch s := h.Spec.(type) {
	case *Spec:
		return s, true
	case *IPs:
		return &s.Spec, true
	}
	return nil, false
}

func (m *Macvlans) learn(s *Spec, k known) { m.learnAs(s.String(), k) }

func (m *Macvlans) learnAs(text string, k known) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.known[text] = k
}

// forget forgets a macvlan, and its addresses that came later.

func (m *Macvlans) forget(s *Spec) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.known, s.String())
	delete(m.known, ipsOf(s))
}

func (m *Macvlans) know(s *Spec) (known, bool) { return m.knowAs(s.String()) }

func (m *Macvlans) knowAs(text string) (known, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	k, ok := m.known[text]
	return k, ok
}

// find returns the instance's macvlans in the node's own network namespace. Only somebody who moves one there
// leaves one there: Berth makes none there, and the end of a pod's namespace deletes the macvlans in it. find does
// not enter the pods. No macvlan outlives its pod, and those of pods that live are the ledger's.
func (m *Macvlans) find(context.Context, *hold.Look) (all []hold.Hold, err error) {
	err = m.Conn.EachMacvlan(func(l rtnl.Macvlan) error {
		if mark, ok := parse(l.Alias); ok && mark.instance == m.Instance {
			all = append(all, hold.Hold{Owner: mark.owner, Spec: &Spec{
				Alias: l.Alias, Netns: m.At.Ref(), Ifname: mark.ifname, Mode: l.Mode.String(), MTU: l.MTU, MAC: l.MAC,
			}})
		}
		return nil
	})
	if err != nil {
		return all, fmt.Errorf("looking for macvlans: %w", err)
	}
	return all, nil
}

// errMissing says that a pod has no macvlan of a spec.
var errMissing = errors.New("no interface of the pod is the macvlan")

package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/berth-net/berth/internal/daemon"
	"github.com/berth-net/berth/internal/fault"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel/conntrack"
	"github.com/berth-net/berth/internal/kernel/nft"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/kinds/link"
	"github.com/berth-net/berth/internal/kinds/poolroute"
	"github.com/berth-net/berth/internal/kinds/table"
	"github.com/berth-net/berth/internal/node"
	"github.com/berth-net/berth/internal/stamp"
)

// fakeKernel is what one agent has of a fakeNode, from its start to its end.
// Whatever it changes there goes through the plan: it may fail, or be its last.
type fakeKernel struct {
	*fakeNode
	plan     *fault.Plan
	instance string
	groups   stamp.Groups
	ruleset  nft.Ruleset
	held     hold.ID // who has the table
	claims   *fakeClaims
	batches  *atomic.Uint32
	// watched is told what happens to an owner's link, before it does.
	watched func(op string, h hold.Hold)
}

func newFakeKernel(w *fakeNode, p *fault.Plan, instance string) (*fakeKernel, error) {
	groups, err := stamp.GroupsOf(instance)
	return &fakeKernel{
		fakeNode: w, plan: p, instance: instance, groups: groups,
		claims: &fakeClaims{}, batches: &atomic.Uint32{},
		ruleset: nft.Ruleset{Instance: instance}, watched: func(string, hold.Hold) {},
	}, err
}

// open is node.Open for an agent on a node in memory.
func (w *fakeNode) open(p *fault.Plan, watched func(string, hold.Hold)) func() (*node.Node, error) {
	return func() (*node.Node, error) {
		k, err := newFakeKernel(w, p, "aaaa")
		if err != nil {
			return nil, err
		}
		k.watched = watched
		return &node.Node{
			Place: daemon.Place{Netns: w.self, Boot: w.boot(), Wall: w.wall, Boottime: w.boottime},
			Conn:  fakeConn{k}, Tracked: fakeTracked{k},
			Equip: func(n *node.Node, _ node.Hooks) error {
				k.instance, k.groups, k.ruleset = n.Instance, n.Groups, nft.Ruleset{Instance: n.Instance}
				n.Table, n.Routes, n.Links = fakeTable{k}, fakeRoutes{k, n.Metric}, fakeLinks{k}
				return nil
			},
			Identify: w.identify, Occupied: w.occupied, Noticed: w.onNotice, Monitor: k.listen,
			SetSysctl: func(name, value string) error {
				return k.step("sysctl", name, func() error { w.sysctl[name] = value; return nil })
			},
			Ends: w.ends,
			Shut: func() error { return nil },
		}, nil
	}
}

// step is one change of the node: a system call.
func (k *fakeKernel) step(sort, what string, f func() error) error {
	return k.plan.Around(sort, sort+" "+what, func() error {
		k.mu.Lock()
		defer k.mu.Unlock()
		return f()
	})
}

type fakeConn struct{ *fakeKernel }

func (c fakeConn) Close() error            { return nil }
func (c fakeConn) UplinkMTU() (int, error) { return 1500, nil }

func (c fakeConn) Veths(keep func(rtnl.Link) (bool, error)) ([]rtnl.Link, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []rtnl.Link
	for _, l := range c.links {
		ok, err := keep(l.show())
		if err != nil {
			return nil, err
		}
		if ok {
			all = append(all, l.show())
		}
	}
	return all, nil
}

type fakeTracked struct{ *fakeKernel }

func (t fakeTracked) Close() {}

func (t fakeTracked) Forget(addrs []netip.Addr) error {
	return t.step("forget", fmt.Sprint(addrs), func() error {
		for _, a := range addrs {
			delete(t.flows, a)
		}
		return nil
	})
}

func (t fakeTracked) ForgetExposed(conntrack.Rules) error { return nil }

// Load and Trim are those of a table that is never full.
func (t fakeTracked) Load() (entries, most int, err error) { return 0, 0, nil }
func (t fakeTracked) Trim(context.Context, map[netip.Addr]int, conntrack.Bounds) (map[int]int, error) {
	return nil, nil
}

// fakeTable is the kind of the table. Run is told of every change; between it and
// the mending the table is not relied on.
type fakeTable struct{ *fakeKernel }

func (t fakeTable) Kind() hold.Kind {
	return hold.Kind{
		Stage:   hold.Use,
		New:     func() hold.Spec { return &table.Spec{} },
		Acquire: t.acquire,
		Verify:  hold.VerifyEach(t.verify),
		Release: hold.Each(t.release),
		Find:    t.find,
	}
}

// wanted is the table for an owner.
func (t fakeTable) wanted(o hold.ID) nft.Ruleset {
	r := t.ruleset
	r.Owner = string(o)
	return r
}

// right reports whether the table is an owner's, and as it should be.
func (t fakeTable) right(o hold.ID) bool {
	return t.table != nil && reflect.DeepEqual(*t.table, t.wanted(o))
}

func (t fakeTable) write(o hold.ID) error {
	want := t.wanted(o)
	return t.step("table", "write", func() error { t.table = &want; return nil })
}

func (t fakeTable) SetRuleset(r nft.Ruleset) error {
	t.mu.Lock()
	t.ruleset = r
	held := t.held
	t.mu.Unlock()
	if held == "" {
		return nil
	}
	return t.write(held)
}

// Retry and Lacks are those of a kernel that has everything.
func (t fakeTable) Retry() error     { return nil }
func (t fakeTable) Lacks() nft.Parts { return 0 }

func (t fakeTable) acquire(_ context.Context, h hold.Hold) error {
	t.mu.Lock()
	held, right := t.held, t.right(h.Owner)
	t.mu.Unlock()
	if held != "" && held != h.Owner {
		return fmt.Errorf("%s: %w: %s", h.Spec, hold.ErrForeign, held)
	}
	if !right {
		if err := t.write(h.Owner); err != nil {
			return err
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.held = h.Owner
	return nil
}

func (t fakeTable) verify(_ context.Context, h hold.Hold) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.held != "" && t.held != h.Owner, t.table == nil:
		return fmt.Errorf("%s: %w", h.Spec, hold.ErrGone)
	case t.table.Owner != string(h.Owner):
		return fmt.Errorf("%s: %w: it is of %s", h.Spec, hold.ErrGone, t.table.Owner)
	case !t.right(h.Owner):
		return fmt.Errorf("%s: %w", h.Spec, hold.ErrChanged)
	}
	t.held = h.Owner
	return nil
}

func (t fakeTable) release(_ context.Context, h hold.Hold) error {
	return t.step("table", "delete", func() error {
		if t.held == h.Owner {
			t.held = ""
		}
		if t.table != nil && t.table.Owner == string(h.Owner) {
			t.table = nil
		}
		return nil
	})
}

func (t fakeTable) find(context.Context, *hold.Look) ([]hold.Hold, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.table == nil {
		return nil, nil
	}
	return []hold.Hold{{Owner: hold.ID(t.table.Owner), Spec: &table.Spec{Instance: t.table.Instance}}}, nil
}

// Run puts the table back when somebody changes it.
func (t fakeTable) Run(ctx context.Context, report table.Report) {
	for {
		t.mu.Lock()
		held, right := t.held, t.held == "" || t.right(t.held)
		t.mu.Unlock()
		var wait <-chan time.Time
		if !right {
			err := t.write(held)
			if report(hold.ErrGone, err); err != nil {
				wait = time.After(time.Second)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-t.news:
		case <-wait:
		}
	}
}

// intact reports whether the table drops what enters or leaves by dying links.
// t.mu is held.
func (k *fakeKernel) intact() bool { return k.table != nil && k.table.Instance == k.instance }

// fakeRoutes is the poolroute kind.
type fakeRoutes struct {
	*fakeKernel
	metric uint32
}

func (r fakeRoutes) Kind() hold.Kind {
	return hold.Kind{
		Stage:   hold.Use,
		New:     func() hold.Spec { return new(poolroute.Spec) },
		Acquire: r.acquire,
		Verify:  hold.VerifyEach(r.verify),
		Release: hold.Each(r.release),
		Batch:   32,
		Find:    r.find,
	}
}

func (r fakeRoutes) acquire(_ context.Context, h hold.Hold) error {
	s := *h.Spec.(*poolroute.Spec)
	return r.step("route", "add "+s.String(), func() error {
		if ours, there := r.pools[s]; there && !ours {
			return fmt.Errorf("%s: %w", h.Spec, hold.ErrForeign)
		}
		r.pools[s] = true
		return nil
	})
}

func (r fakeRoutes) verify(_ context.Context, h hold.Hold) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.pools[*h.Spec.(*poolroute.Spec)] {
		return fmt.Errorf("%s: %w", h.Spec, hold.ErrGone)
	}
	return nil
}

func (r fakeRoutes) release(_ context.Context, h hold.Hold) error {
	s := *h.Spec.(*poolroute.Spec)
	return r.step("route", "delete "+s.String(), func() error {
		if r.pools[s] {
			delete(r.pools, s)
		}
		return nil
	})
}

func (r fakeRoutes) find(context.Context, *hold.Look) ([]hold.Hold, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []hold.Hold
	for s, ours := range r.pools {
		if ours && s.Metric == r.metric {
			all = append(all, hold.Hold{Spec: &s})
		}
	}
	return all, nil
}

// fakeLinks is the link kind. A link comes into being in three steps, like the
// real one: born, whole inside the pod, live on the host.
type fakeLinks struct{ *fakeKernel }

func (k fakeLinks) Kind() hold.Kind {
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

// of returns a hold's spec, if its name is its owner's.
func (k fakeLinks) of(h hold.Hold) (*link.Spec, error) {
	s := h.Spec.(*link.Spec)
	if want := stamp.Link(k.instance, h.Owner); s.Name != want {
		return nil, fmt.Errorf("link %s is not that of %s", s.Name, h.Owner)
	}
	return s, nil
}

func (k fakeLinks) acquire(_ context.Context, h hold.Hold) error {
	s, err := k.of(h)
	if err != nil {
		return err
	}
	k.watched("acquire", h)
	k.mu.Lock()
	pod, gone := k.fakeNode.find(s.Netns)
	l := k.links[s.Name]
	coming := l != nil && l.group == k.groups.Coming()
	k.mu.Unlock()
	switch {
	case l != nil && !coming:
		return k.furnish(s, l)
	case gone != nil:
		return fmt.Errorf("%w: %w", hold.ErrHomeless, gone)
	}
	if coming {
		if err := k.step("link", "delete "+s.Name, func() error { k.unlink(l); return nil }); err != nil {
			return err
		}
	}
	l = &fakeLink{name: s.Name, group: k.groups.Coming(), mtu: mtuOf(s), mac: s.HostMAC, pod: pod, ifname: s.Ifname}
	err = k.step("link", "add "+s.Name, func() error {
		if pod.closed {
			return hold.ErrHomeless
		}
		if pod.ends[s.Ifname] != nil || k.links[s.Name] != nil {
			return fmt.Errorf("interface %s exists in the pod: %w", s.Ifname, hold.ErrForeign)
		}
		k.index++
		l.index = k.index
		k.links[s.Name], pod.ends[s.Ifname] = l, l
		return nil
	})
	if err != nil {
		return err
	}
	err = k.step("pod", "furnish "+s.Ifname, func() error {
		l.end = fakeEnd{mac: s.MAC, mtu: mtuOf(s), up: true, addrs: slices.Clone(s.Addresses)}
		return nil
	})
	if err == nil {
		err = k.furnish(s, l)
	}
	if err != nil { // best effort
		return errors.Join(err, k.step("link", "delete "+s.Name, func() error { k.unlink(l); return nil }))
	}
	return nil
}

// furnish gives the host's end what it lacks.
func (k fakeLinks) furnish(s *link.Spec, l *fakeLink) error {
	return k.step("link", "set "+s.Name, func() error {
		switch {
		case k.links[s.Name] != l:
			return fmt.Errorf("link %s: %w", s.Name, hold.ErrGone)
		case k.groups.IsDying(l.group):
			return errors.New("it is cut off")
		}
		for _, a := range s.Addresses {
			if to := k.ways[a]; to != nil && to != l {
				return fmt.Errorf("the route to %s leads to %s: %w", a, to.name, hold.ErrForeign)
			}
		}
		l.alias, l.group, l.mtu, l.mac, l.up = s.Alias, k.groups.Live(), mtuOf(s), s.HostMAC, true
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

func (k fakeLinks) verify(_ context.Context, h hold.Hold) error {
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
	same := l.group == k.groups.Live() && stamp.Alike(l.alias, s.Alias) && l.mac == s.HostMAC && l.mtu == mtuOf(s) && l.up
	for _, a := range s.Addresses {
		same = same && k.ways[a] == l
	}
	if !same {
		return fmt.Errorf("%s: %w: %+v", s, hold.ErrChanged, l.show())
	}
	return nil
}

func (k fakeLinks) ListAhead() {}

func (k fakeLinks) Restamp(s *link.Spec, start int64) error {
	return k.step("link", "restamp "+s.Name, func() error {
		l := k.links[s.Name]
		if l == nil {
			return fmt.Errorf("link %s: %w", s.Name, hold.ErrGone)
		}
		if of, ok := stamp.Parse(l.alias); ok {
			l.alias = of.Since(start)
		}
		return nil
	})
}

func (k fakeLinks) VerifyPod(_ context.Context, h hold.Hold) error {
	s, err := k.of(h)
	if err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	pod, gone := k.fakeNode.find(s.Netns)
	if gone != nil || pod.ends[s.Ifname] == nil {
		return fmt.Errorf("interface %s: %w", s.Ifname, hold.ErrGone)
	}
	if e := pod.ends[s.Ifname].end; e.mac != s.MAC || e.mtu != mtuOf(s) || !e.up || !slices.Equal(e.addrs, s.Addresses) {
		return fmt.Errorf("interface %s: %w: %+v", s.Ifname, hold.ErrChanged, e)
	}
	return nil
}

// sever sets links down that are cut off.
func (k fakeLinks) sever(_ context.Context, hs []hold.Hold) error {
	var errs []error
	for _, h := range hs {
		s, err := k.of(h)
		if err == nil {
			k.watched("sever", h)
			err = k.step("link", "set down "+s.Name, func() error {
				if l := k.links[s.Name]; l != nil {
					l.up = false
				}
				return nil
			})
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// DownDying sets all links down that are cut off.
func (k fakeLinks) DownDying(context.Context) error {
	return k.step("link", "set all down that are cut off", func() error {
		for _, l := range k.links {
			if k.groups.IsDying(l.group) {
				l.up = false
			}
		}
		return nil
	})
}

func (k fakeLinks) Whole(context.Context) ([]rtnl.Link, error) {
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

func (k fakeLinks) find(context.Context, *hold.Look) ([]hold.Hold, error) {
	prefix := "b" + k.instance[:stamp.PrefixLen]
	k.mu.Lock()
	defer k.mu.Unlock()
	var all []hold.Hold
	for name, l := range k.links {
		id, err := hold.ParseID(strings.TrimPrefix(name, prefix))
		if err != nil || !strings.HasPrefix(name, prefix) {
			continue
		}
		all = append(all, hold.Hold{Owner: id, Spec: &link.Spec{Name: name, Alias: l.alias, MTU: l.mtu, HostMAC: l.mac}})
	}
	return all, nil
}

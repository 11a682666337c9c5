package agent

import (
	"context"
	"errors"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/berth-net/berth/internal/stamp"

	"github.com/berth-net/berth/internal/attachment"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/ipam"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/kinds/link"
)

// How long after news somebody's things are looked at, and mended.
const (
	// soon lets what belongs together happen, and one look serve it.
	soon = 20 * time.Millisecond
	// down is what a link that was set down, and not up again, is given: it may
	// be a plugin that cuts a pod off because this agent did not answer in time,
	// and its deletion be about to be in the queue.
	down = 300 * time.Millisecond
	// fight doubles with each repair of the same owner, up to truce: somebody
	// else wants it otherwise. It is forgotten after four times as long, or calm.
	fight, truce, calm = 100 * time.Millisecond, 30 * time.Second, 2 * time.Second
	// everything is the least time between two looks at everything.
	everything = 5 * time.Second
)

// monitor tells of changes that others may have made (rtnl.Monitor).
type monitor interface {
	Next() ([]rtnl.News, error)
	Close() error
}

// listen begins to hear what is done to links and routes. What is heard is
// acted upon by watch. Unless deletions wait, which the kernel would do more
// slowly meanwhile, what links there are is read from now on.
func (a *Agent) listen() {
	if a.monitor == nil {
		return // of a node that cannot tell: the sweep sees it
	}
	m, err := a.monitor()
	if err != nil {
		a.Log.Warn("changes by others are mended by the sweep alone", "err", err)
		return
	}
	a.news = m
	if n, err := a.queue.Waiting(); err == nil && n == 0 {
		a.links.ListAhead()
	}
}

// watch mends at once what others do to the links and routes of those who are
// wanted, until ctx ends. A link that was set down and up looks well, and has
// lost its routes.
func (a *Agent) watch(ctx context.Context) {
	m := a.news
	if m == nil {
		return
	}
	heard := make(chan []rtnl.News)
	go func() {
		defer close(heard)
		for {
			news, err := m.Next()
			if errors.Is(err, os.ErrClosed) {
				return
			}
			if err != nil {
				a.Log.Warn("listening to the kernel", "err", err)
				news = []rtnl.News{{Change: rtnl.Lost}}
				sleep(ctx, time.Second, nil)
			}
			heard <- news
		}
	}()
	defer func() {
		m.Close()
		for range heard { // until the other has ended
		}
	}()
	w := newWatcher(a)
	defer w.work.Wait()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case news := <-heard:
			for _, n := range news {
				w.hear(n, time.Now())
			}
		case <-timer.C:
			w.act(ctx, time.Now())
		}
		timer.Reset(w.next(time.Now()))
	}
}

// watcher knows whose things are to be looked at, and when.
type watcher struct {
	agent    *Agent
	suspects map[hold.ID]*suspect
	all      time.Time // when everything is looked at; zero: need not be
	looked   time.Time // when it last was

	work    sync.WaitGroup
	places  chan struct{} // has a token for each repair under way
	mending sync.Map      // hold.ID of those who are being repaired, or are about to be
}

// mendsAtOnce is how many owners' things are repaired beside each other: a repair
// that a pod makes slow keeps no other pod's.
const mendsAtOnce = 8

func newWatcher(a *Agent) *watcher {
	return &watcher{agent: a, suspects: map[hold.ID]*suspect{}, places: make(chan struct{}, mendsAtOnce)}
}

// suspect is an owner whose things somebody may have changed.
type suspect struct {
	at      time.Time // when they are looked at; zero: they were, at last
	down    bool      // its link is, for what we know
	last    time.Time
	repairs int  // lately
	gone    bool // nothing is known but that its link is, perhaps with its pod
	loose   bool // its link was not among the live ones, which the table's rules are for
}

// hear notes who a piece of news is about, if it is not as it should be.
func (w *watcher) hear(n rtnl.News, now time.Time) {
	a := w.agent
	switch n.Change {
	case rtnl.Lost:
		if w.all.IsZero() {
			w.all = now.Add(max(soon, everything-now.Sub(w.looked)))
		}
	case rtnl.RouteGone:
		id, ok := a.ledger.Holder(routeName(n.Route))
		if s := w.suspects[id]; ok && (s == nil || !s.down) { // or it goes with the link
			w.note(id, now, soon)
		}
	case rtnl.LinkDown:
		if id, ok := a.linkOwner(n.Link); ok {
			w.note(id, now, down)
			if s := w.suspects[id]; s != nil {
				s.down = true
			}
		}
	case rtnl.LinkGone:
		if id, ok := a.linkOwner(n.Link); ok {
			s := w.suspects[id]
			alone := s == nil || s.at.IsZero() || s.gone
			w.note(id, now, soon)
			if s := w.suspects[id]; s != nil {
				s.gone = alone
			}
		}
	case rtnl.LinkSet:
		id, ok := a.linkOwner(n.Link)
		if !ok {
			return
		}
		s := w.suspects[id]
		up := s != nil && s.down && n.Link.Up
		if up {
			s.down = false
		}
		if up || a.differs(id, n.Link) {
			w.note(id, now, soon)
		}
		if s := w.suspects[id]; s != nil && (n.Link.Group != a.groups.Live() || n.Link.Master != 0) {
			s.loose = true
		}
	}
}

// note arranges for a look at an owner's things, unless it is being released.
func (w *watcher) note(id hold.ID, now time.Time, after time.Duration) {
	if o, ok := w.agent.ledger.Owner(id); !ok || !o.Wanted() {
		return
	}
	s := w.suspects[id]
	if s == nil {
		s = &suspect{}
		w.suspects[id] = s
	}
	if s.over(now) {
		s.repairs = 0
	}
	s.gone = false
	after = max(after, s.wait()-now.Sub(s.last))
	if at := now.Add(after); s.at.IsZero() || at.Before(s.at) {
		s.at = at
	}
}

// wait is how long an owner's things are left alone after a repair.
func (s *suspect) wait() time.Duration {
	switch {
	case s.repairs == 0:
		return 0
	case s.repairs > 9:
		return truce
	}
	return min(truce, fight<<(s.repairs-1))
}

// over reports whether nobody has changed an owner's things for long.
func (s *suspect) over(now time.Time) bool {
	return s.at.IsZero() && now.Sub(s.last) > max(calm, 4*s.wait())
}

// next returns how long nothing has to be done.
func (w *watcher) next(now time.Time) time.Duration {
	wait := time.Hour
	if !w.all.IsZero() {
		wait = w.all.Sub(now)
	}
	for id, s := range w.suspects {
		switch {
		case !s.at.IsZero():
			wait = min(wait, s.at.Sub(now))
		case s.over(now):
			delete(w.suspects, id)
		}
	}
	return max(wait, 0)
}

// act begins what is due, and waits for none of it.
func (w *watcher) act(ctx context.Context, now time.Time) {
	a := w.agent
	if !w.all.IsZero() && !w.all.After(now) {
		w.all, w.looked = time.Time{}, now
		a.Log.Info("more has changed than the kernel could tell: looking at everything")
		w.work.Go(func() {
			a.Sweep(ctx)
			a.exposed() // a link may have been away and back
		})
	}
	due := map[hold.ID]suspect{}
	for id, s := range w.suspects {
		if s.at.IsZero() || s.at.After(now) || ctx.Err() != nil {
			continue
		}
		_, mending := w.mending.Load(id)
		if mending || a.engine.Taking(id) { // the ADD's own doing, or it will see
			s.at = now.Add(fight)
			continue
		}
		s.at, s.down, s.last, s.repairs = time.Time{}, false, now, s.repairs+1
		due[id] = *s
		s.gone, s.loose = false, false
		w.mending.Store(id, nil)
	}
	if len(due) > 0 {
		w.work.Go(func() { w.mendAll(ctx, due) })
	}
}

// mendAll repairs what is due, beside each other.
func (w *watcher) mendAll(ctx context.Context, due map[hold.ID]suspect) {
	if err := w.agent.Drain(ctx); err != nil { // what a plugin has cut off must not come back
		w.agent.Log.Error("deletions wait", "err", err)
	}
	for id, s := range due {
		select {
		case w.places <- struct{}{}:
		case <-ctx.Done():
			return
		}
		w.work.Go(func() {
			defer func() { <-w.places }()
			defer w.mending.Delete(id)
			if s.gone && w.agent.podGone(id) {
				return
			}
			w.agent.mend(ctx, id, s.repairs == 1)
			if s.loose {
				w.agent.exposed()
			}
		})
	}
}

// mend takes again what an owner lacks.
func (a *Agent) mend(ctx context.Context, id hold.ID, first bool) {
	o, ok := a.ledger.Owner(id)
	if !ok {
		return
	}
	err := a.engine.RepairSoon(ctx, id)
	for _, h := range o.Holds {
		a.taint(h)
	}
	if err != nil && ctx.Err() == nil && first {
		a.Log.Warn("mending what others have changed", "owner", id, "err", err)
	}
}

// routeName is the name that the owner of a route of Berth's has.
func routeName(r rtnl.Route) hold.Name {
	if r.Dst.IsSingleIP() {
		return ipam.Name(r.Dst.Addr())
	}
	return cidrName(r.Dst)
}

// linkOwner returns whose link this is: by its name, or, if it has been
// renamed, by its alias or its second name.
func (a *Agent) linkOwner(l rtnl.Link) (hold.ID, bool) {
	if id, ok := stamp.LinkID(l.Name); ok && strings.HasPrefix(l.Name, stamp.Links(a.instance)) {
		return id, true
	}
	if s, ok := stamp.Parse(l.Alias); ok {
		return s.ID, s.Instance == a.instance
	}
	id, ok := stamp.LinkID(l.Given)
	return id, ok && strings.HasPrefix(l.Given, stamp.Links(a.instance))
}

// differs reports whether a link is not as its owner has it.
func (a *Agent) differs(id hold.ID, l rtnl.Link) bool {
	e := a.index.get(id)
	if e == nil {
		return false
	}
	s, err := attachment.Link(e.owner)
	if err != nil {
		return false
	}
	mtu := s.MTU
	if mtu == 0 {
		mtu = link.DefaultMTU
	}
	return l.Name != s.Name || !stamp.Alike(l.Alias, s.Alias) || l.MAC != s.HostMAC || l.MTU != mtu || l.Master != 0 || l.Group != a.groups.Live()
}

// podGone reports whether an attachment's link has gone with its pod: what is
// left of it is for DEL, or for the sweep.
func (a *Agent) podGone(id hold.ID) bool {
	e := a.index.get(id)
	if e == nil {
		return true
	}
	_, err := a.identify(e.record.Netns)
	return errors.Is(err, ns.ErrGone)
}

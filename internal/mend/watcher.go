package mend

import (
	"context"
	"sync"
	"time"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/patience"
)

// How long after news somebody's things are looked at, and mended.
const (
	// Soon lets what belongs together happen, and one look serve it.
	Soon = 20 * time.Millisecond
	// Down is what a link that was set Down, and not up again, is given: it may
	// be a plugin that cuts a pod off because this agent did not answer in time,
	// and its deletion be about to be in the queue.
	Down = 300 * time.Millisecond
	// Fight doubles with each repair of the same owner, up to Truce: somebody
	// else wants it otherwise. It is forgotten after four times as long, or calm.
	Fight, Truce, calm = 100 * time.Millisecond, 30 * time.Second, 2 * time.Second
	// Everything is the least time between two looks at everything.
	Everything = 5 * time.Second
)

// Watcher knows whose things are to be looked at, and when.
type Watcher struct {
	*Mend
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

func NewWatcher(m *Mend) *Watcher {
	return &Watcher{Mend: m, suspects: map[hold.ID]*suspect{}, places: make(chan struct{}, mendsAtOnce)}
}

// Wait waits until what was begun has ended.
func (w *Watcher) Wait() { w.work.Wait() }

// suspect is an owner whose things somebody may have changed.
type suspect struct {
	at      time.Time // when they are looked at; zero: they were, at last
	down    bool      // its link is, for what we know
	last    time.Time
	repairs int  // lately
	gone    bool // nothing is known but that its link is, perhaps with its pod
	loose   bool // its link was not among the live ones, which the table's rules are for
}

// Hear notes who a piece of news is about, if it is not as it should be.
func (w *Watcher) Hear(n rtnl.News, now time.Time) {
	m := w.Mend
	switch n.Change {
	case rtnl.Lost:
		if w.all.IsZero() {
			w.all = now.Add(max(Soon, Everything-now.Sub(w.looked)))
		}
	case rtnl.RouteGone:
		id, ok := m.Ledger.Holder(routeName(n.Route))
		if s := w.suspects[id]; ok && (s == nil || !s.down) { // or it goes with the link
			w.note(id, now, Soon)
		}
	case rtnl.LinkDown:
		if id, ok := m.linkOwner(n.Link); ok {
			w.note(id, now, Down)
			if s := w.suspects[id]; s != nil {
				s.down = true
			}
		}
	case rtnl.LinkGone:
		if id, ok := m.linkOwner(n.Link); ok {
			s := w.suspects[id]
			alone := s == nil || s.at.IsZero() || s.gone
			w.note(id, now, Soon)
			if s := w.suspects[id]; s != nil {
				s.gone = alone
			}
		}
	case rtnl.LinkSet:
		id, ok := m.linkOwner(n.Link)
		if !ok {
			return
		}
		s := w.suspects[id]
		up := s != nil && s.down && n.Link.Up
		if up {
			s.down = false
		}
		if up || m.differs(id, n.Link) {
			w.note(id, now, Soon)
		}
		if s := w.suspects[id]; s != nil && (n.Link.Group != m.node.Groups.Live() || n.Link.Master != 0) {
			s.loose = true
		}
	}
}

// note arranges for a look at an owner's things, unless it is being released.
func (w *Watcher) note(id hold.ID, now time.Time, after time.Duration) {
	if o, ok := w.Ledger.Owner(id); !ok || !o.Wanted() {
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
	if s.repairs == 0 {
		return 0
	}
	return patience.Backoff(Fight, Truce, s.repairs)
}

// over reports whether nobody has changed an owner's things for long.
func (s *suspect) over(now time.Time) bool {
	return s.at.IsZero() && now.Sub(s.last) > max(calm, 4*s.wait())
}

// Next returns how long nothing has to be done.
func (w *Watcher) Next(now time.Time) time.Duration {
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

// Act begins what is due, and waits for none of it.
func (w *Watcher) Act(ctx context.Context, now time.Time) {
	m := w.Mend
	if !w.all.IsZero() && !w.all.After(now) {
		w.all, w.looked = time.Time{}, now
		m.Log.Info("more has changed than the kernel could tell: looking at everything")
		w.work.Go(func() {
			m.hooks.Sweep(ctx)
			m.hooks.Exposed() // a link may have been away and back
		})
	}
	due := map[hold.ID]suspect{}
	for id, s := range w.suspects {
		if s.at.IsZero() || s.at.After(now) || ctx.Err() != nil {
			continue
		}
		_, mending := w.mending.Load(id)
		if mending || m.Engine.Taking(id) { // the ADD's own doing, or it will see
			s.at = now.Add(Fight)
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
func (w *Watcher) mendAll(ctx context.Context, due map[hold.ID]suspect) {
	m := w.Mend
	if err := m.hooks.Drain(ctx); err != nil { // what a plugin has cut off must not come back
		m.Log.Error("deletions wait", "err", err)
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
			if s.gone && m.podGone(id) {
				return
			}
			m.mend(ctx, id, s.repairs == 1)
			if s.loose {
				m.hooks.Exposed()
			}
		})
	}
}

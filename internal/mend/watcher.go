package mend

import (
	"context"
	"sync"
	"time"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/patience"
)

// How long the watcher waits between news of an owner's things and their repair.
const (
	// Soon is the wait after most news. Changes that belong together arrive within it, and
	// one repair serves them all.
	Soon = 20 * time.Millisecond
	// Down is the wait after a link was set down, and not up again: the plugin may have cut
	// the pod off because this agent did not answer in time, and its deletion may be about to
	// appear in the queue.
	Down = 300 * time.Millisecond
	// Fight is the wait after the first repair of an owner. The wait doubles with each further repair,
	// up to Truce, because somebody else wants the owner's things to be different. The watcher forgets
	// the repairs once nobody has changed anything for four such waits, and for calm at least.
	Fight, Truce, calm = 100 * time.Millisecond, 30 * time.Second, 2 * time.Second
	// Everything is the least time between two looks at everything.
	Everything = 5 * time.Second
)

// Watcher knows which owners are to be repaired, and when.
type Watcher struct {
	*Mend
	suspects map[hold.ID]*suspect
	all      time.Time // when to look at everything; zero: no need to
	looked   time.Time // when the watcher last looked at everything

	forwarding suspect              // the node's forwarding, of all links
	still      map[unforwarded]bool // links that stopped forwarding, of pods or not
	stillAt    time.Time            // when to find out which pods have these links; zero: there are no such links

	work    sync.WaitGroup
	places  chan struct{} // has a token for each repair under way
	mending sync.Map      // hold.ID of owners that are being repaired, or are about to be
	broken  sync.Map      // hold.ID to int: owners whose repair failed, so many times in a row
	failed  chan struct{} // has a token when broken has more
}

// mendsAtOnce is how many owners are repaired beside each other, so that a repair which a pod
// makes slow does not hold up the repairs of other pods.
const mendsAtOnce = 8

// unforwarded is a link for which forwarding of a family is off.
type unforwarded struct {
	index int
	ipv6  bool
}

func NewWatcher(m *Mend) *Watcher {
	return &Watcher{Mend: m, suspects: map[hold.ID]*suspect{}, still: map[unforwarded]bool{}, places: make(chan struct{}, mendsAtOnce), failed: make(chan struct{}, 1)}
}

// Wait waits until all that Act began has ended.
func (w *Watcher) Wait() { w.work.Wait() }

// suspect is an owner whose things somebody may have changed.
type suspect struct {
	at      time.Time // when the owner is to be repaired; zero: nothing is due
	down    bool      // its link is down, by the last news
	last    time.Time // when it was last repaired
	repairs int       // how often it was repaired lately because of news
	failed  int       // how many of its repairs failed in a row, but for one under way
	again   bool      // at is for a repair that failed, and no news have come since
	gone    bool      // the only news is that its link is gone, perhaps with its pod
	loose   bool      // its link was outside the live group, for which the table's rules are, or had a master
}

// Hear notes the owner that a piece of news is about, if something is not as it should be.
func (w *Watcher) Hear(n rtnl.News, now time.Time) {
	m := w.Mend
	switch n.Change {
	case rtnl.Lost:
		if w.all.IsZero() {
			w.all = now.Add(max(Soon, Everything-now.Sub(w.looked)))
		}
		m.hooks.Addressed()
	case rtnl.Addressed:
		m.hooks.Addressed()
	case rtnl.RouteGone:
		id, ok := m.Ledger.Holder(routeName(n.Route))
		if s := w.suspects[id]; ok && (s == nil || !s.down) { // if the link is down, the kernel took the route with it
			w.note(id, now, Soon)
		}
	case rtnl.Unforwarded:
		w.hearUnforwarded(n, now)
	case rtnl.Reshaped, rtnl.Repoliced:
		if id, ok := m.reshaped(n); ok {
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
				s.gone = alone && !m.isTunnel(n.Link)
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
		if up || m.isTunnel(n.Link) || m.differs(id, n.Link) {
			w.note(id, now, Soon)
		}
		if s := w.suspects[id]; s != nil && !m.isTunnel(n.Link) && (n.Link.Group != m.node.Groups.Live() || n.Link.Master != 0) {
			s.loose = true
		}
	}
}

// note arranges for a repair of an owner, unless the owner is being released.
func (w *Watcher) note(id hold.ID, now time.Time, after time.Duration) {
	if o, ok := w.Ledger.Owner(id); !ok || !o.Wanted() {
		return
	}
	s := w.suspects[id]
	if s == nil {
		s = &suspect{}
		w.suspects[id] = s
	}
	s.gone, s.again = false, false
	s.note(now, after)
}

// retry arranges for other tries of the repairs that failed, such as while nobody could tell
// whether a deletion waits. The sweep may come much later. Tries do not count as repairs, so that
// later news do not wait for longer.
func (w *Watcher) retry(now time.Time) {
	w.broken.Range(func(key, failed any) bool {
		id := key.(hold.ID)
		w.broken.Delete(id)
		if o, ok := w.Ledger.Owner(id); !ok || !o.Wanted() {
			return true
		}
		s := w.suspects[id]
		if s == nil {
			s = &suspect{}
			w.suspects[id] = s
		}
		if s.failed = failed.(int); s.at.IsZero() {
			s.at, s.again = now.Add(patience.Backoff(Fight, Truce, s.failed)), true
		}
		return true
	})
}

// note arranges for a repair after a while, and later if there were repairs lately.
func (s *suspect) note(now time.Time, after time.Duration) {
	if s.over(now) {
		s.repairs = 0
	}
	after = max(after, s.wait()-now.Sub(s.last))
	if at := now.Add(after); s.at.IsZero() || at.Before(s.at) {
		s.at = at
	}
}

// repaired notes a repair that begins now.
func (s *suspect) repaired(now time.Time) { s.at, s.last, s.repairs = time.Time{}, now, s.repairs+1 }

// hearUnforwarded notes that forwarding is off, for all links or for one. If forwarding is off for
// all links, the kernel also sends news of each link, and turning it on for all links turns it on
// for each link.
func (w *Watcher) hearUnforwarded(n rtnl.News, now time.Time) {
	switch {
	case !w.hooks.Forwards():
	case n.Link.Index == 0:
		w.forwarding.note(now, Soon)
	default:
		w.still[unforwarded{n.Link.Index, n.IPv6}] = true
		if w.stillAt.IsZero() {
			w.stillAt = now.Add(Soon)
		}
	}
}

// forward begins to turn forwarding on again. It notes an owner if forwarding is off for the
// owner's own link, and not for all links.
func (w *Watcher) forward(ctx context.Context, now time.Time) {
	due := func(at time.Time) bool { return !at.IsZero() && !at.After(now) }
	if due(w.forwarding.at) {
		w.forwarding.repaired(now)
		clear(w.still) // also links of the other family: if its forwarding is off for a link alone, the sweep sees that
		w.stillAt = time.Time{}
		w.work.Go(func() { w.hooks.Forward(ctx) })
	}
	if !due(w.stillAt) {
		return
	}
	w.stillAt = time.Time{}
	var indices []int
	for u := range w.still {
		indices = append(indices, u.index)
	}
	clear(w.still)
	names, err := w.node.Conn.Names(indices...)
	if err != nil {
		w.Log.Warn("could not find out which pods' links stopped forwarding", "err", err)
	}
	for _, name := range names {
		if id, ok := w.linkOwner(rtnl.Link{Name: name}); ok {
			w.note(id, now, 0)
		}
	}
}

// wait returns how long an owner is left alone after a repair.
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

// Next returns how long the watcher has nothing to do.
func (w *Watcher) Next(now time.Time) time.Duration {
	wait := time.Hour
	for _, at := range []time.Time{w.all, w.forwarding.at, w.stillAt} {
		if !at.IsZero() {
			wait = min(wait, at.Sub(now))
		}
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

// Act begins the repairs that are due, and does not wait for them.
func (w *Watcher) Act(ctx context.Context, now time.Time) {
	m := w.Mend
	if !w.all.IsZero() && !w.all.After(now) {
		w.all, w.looked = time.Time{}, now
		m.Log.Info("the kernel could not report all changes: the agent looks at everything")
		w.work.Go(func() {
			m.hooks.Sweep(ctx)
			m.hooks.Exposed() // a link may have left the live group and come back
		})
	}
	w.forward(ctx, now)
	due := map[hold.ID]suspect{}
	for id, s := range w.suspects {
		if s.at.IsZero() || s.at.After(now) || ctx.Err() != nil {
			continue
		}
		_, mending := w.mending.Load(id)
		if mending || m.Engine.Taking(id) { // the news may be of the ADD's own doing, or the ADD will see the change
			s.at = now.Add(Fight)
			continue
		}
		if s.again {
			s.at, s.last, s.again = time.Time{}, now, false
		} else {
			s.repaired(now)
		}
		s.down = false
		due[id] = *s
		s.gone, s.loose, s.failed = false, false, 0
		w.mending.Store(id, nil)
	}
	if len(due) > 0 {
		w.work.Go(func() { w.mendAll(ctx, due) })
	}
}

// mendAll repairs the owners that are due, beside each other.
func (w *Watcher) mendAll(ctx context.Context, due map[hold.ID]suspect) {
	m := w.Mend
	first := false // an owner is not due again because its repair failed: the log may lack why
	for _, s := range due {
		first = first || s.failed == 0
	}
	if err := m.hooks.Drain(ctx); err != nil && first { // a pod that a plugin has cut off must not get its network back
		m.Log.Error("could not carry out all queued deletions", "err", err)
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
			if m.mend(ctx, id, s.repairs == 1 && s.failed == 0) {
				w.broken.Store(id, s.failed+1)
				select {
				case w.failed <- struct{}{}:
				default: // Keep is about to look
				}
			}
			if s.loose {
				m.hooks.Exposed()
			}
		})
	}
}

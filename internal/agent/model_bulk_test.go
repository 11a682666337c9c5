package agent

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/engine"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kinds/link"
)

// A cut that failed is tried again while another worker deletes the same link in a bulk: only
// the kernel can say which of the two came first.

// laggards lets the first cut of each of some owners fail, and lets the next cut of these owners begin
// together with a deletion of links. The zero laggards does nothing.
type laggards struct {
	mu       sync.Mutex
	owners   map[hold.ID]bool // true: the owner's first cut is yet to fail
	deleting chan struct{}    // closed when a deletion begins
}

// errLagging is the error of an owner's first cut.
var errLagging = errors.New("the cut lags behind")

// begin makes owners laggards, and nobody else.
func (l *laggards) begin(ids []hold.ID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.owners, l.deleting = map[hold.ID]bool{}, make(chan struct{})
	for _, id := range ids {
		l.owners[id] = true
	}
}

// decorate puts the laggards before the link's kind.
func (l *laggards) decorate(led engine.Ledger, ks hold.Kinds) (engine.Ledger, hold.Kinds) {
	for i := range ks {
		if ks[i].Name() != link.KindName {
			continue
		}
		cut, release := ks[i].Cut, ks[i].Release
		ks[i].Cut = func(ctx context.Context, h hold.Hold) error {
			if err := l.lag(ctx, h.Owner); err != nil {
				return err
			}
			return cut(ctx, h)
		}
		ks[i].Release = func(ctx context.Context, hs []hold.Hold) []error {
			l.follow(hs)
			return release(ctx, hs)
		}
	}
	return led, ks
}

// lag fails an owner's first cut. lag lets a later cut of the owner wait for a deletion of links, for
// a moment at most.
func (l *laggards) lag(ctx context.Context, id hold.ID) error {
	l.mu.Lock()
	first, lags := l.owners[id]
	if lags {
		l.owners[id] = false
	}
	deleting := l.deleting
	l.mu.Unlock()
	switch {
	case first:
		return errLagging
	case lags:
		select {
		case <-deleting:
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
	return nil
}

// follow lets cuts go on beside a deletion of laggards' links.
func (l *laggards) follow(hs []hold.Hold) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, h := range hs {
		if _, lags := l.owners[h.Owner]; lags && l.deleting != nil {
			close(l.deleting)
			l.deleting, l.owners = nil, nil
			return
		}
	}
}

// opBulk deletes several containers at once. Their first cuts fail, and the agent repeats the cuts
// beside the deletion of the links. No owner that the ledger has forgotten may have a link.
func (m *agentModel) opBulk() {
	m.fill()
	var cs []string
	var ids []hold.ID
	links := map[string]string{}
	for c, at := range m.wanted() {
		if b := m.attached[c]; b != nil && !b.doomed && !b.hurt {
			cs, ids = append(cs, c), append(ids, hold.ID(at.ID))
			links[c] = at.HostVeth
			delete(m.attached, c)
			m.unsure[c] = true
		}
	}
	m.note("%v are deleted at once", cs)
	m.laggards.begin(ids)
	for range 2 {
		var all sync.WaitGroup
		for _, c := range cs {
			all.Go(func() {
				ctx, cancel := m.patience()
				defer cancel()
				_, _, _ = m.Delete(ctx, api.Filter{Container: c}, false, m.now())
			})
		}
		all.Wait()
	}
	m.laggards.begin(nil)
	for _, c := range cs {
		m.insistDelete(c, true)
	}
	for c, name := range links {
		if len(m.List(key(c))) == 0 && !m.dead() && m.hasLink(name) {
			m.t.Errorf("%s is forgotten, and its link %s is there", c, name)
		}
	}
}

// fill attaches containers to pods that have none.
func (m *agentModel) fill() {
	for pod := range modelPods {
		c := m.container()
		if m.tenant(pod) == "" && m.attached[c] == nil && !m.dead() {
			if _, err := m.tryAttach(c, pod); err != nil {
				m.insistDelete(c, false)
			}
		}
	}
}

package link

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/berth-net/berth/internal/kernel/rtnl"
)

// relist is how long what the kernel tells of changes is believed to be all.
const relist = 10 * time.Minute

// mirror is the last list of the instance's links, kept as they are by what the
// kernel tells of their changes. To list 5,000 links takes the kernel a fifth of
// a second: for each of them it walks the ids of all pods' network namespaces
// (net_eq_idr, net/core/net_namespace.c).
//
// It lags behind by what the kernel has told and nobody has read yet; what then
// seems to differ has to be looked at again. A link that joins the cut group
// stays as it was: the kernel's news of that are dropped (see rtnl.Monitor). So are
// those of a link that loses all at once by which the kernel knows it to be ours, its
// name among it: see unheard.
type mirror struct {
	own func(rtnl.Link) bool // whether a link is the instance's

	mu       sync.Mutex
	followed bool              // all news come here
	ahead    chan struct{}     // closed when the list of ListAhead has ended; nil: there is none
	links    map[int]rtnl.Link // by index; nil: the next look has to list them
	listed   time.Time
	listing  int         // lists under way
	missed   []rtnl.News // heard meanwhile, that a list may have been too early for
}

// Follow returns m; what its Next tells keeps later glances at links from
// listing them all. m has to be of the instance, and nobody else may read it.
func (l *Links) Follow(m *rtnl.Monitor) *Follower {
	l.mirror.mu.Lock()
	defer l.mirror.mu.Unlock()
	l.mirror.followed = true
	return &Follower{m, l}
}

// ListAhead begins to list the links, once they are followed. The first glance
// waits for that, and has it for nothing. To be called once.
func (l *Links) ListAhead() {
	ahead := make(chan struct{})
	l.mirror.mu.Lock()
	l.mirror.ahead = ahead
	l.mirror.mu.Unlock()
	go func() {
		defer close(ahead)
		_, _ = l.list(context.Background(), nil) // an error is for those who need a list: they try again
	}()
}

// ready waits until no list of ListAhead is under way.
func (m *mirror) ready(ctx context.Context) {
	m.mu.Lock()
	ahead := m.ahead
	m.mu.Unlock()
	if ahead != nil {
		select {
		case <-ahead:
		case <-ctx.Done():
		}
	}
}

// Follower is a monitor of whose news an instance's links take note.
type Follower struct {
	monitor *rtnl.Monitor
	links   *Links
}

// Next is rtnl.Monitor's.
func (f *Follower) Next() ([]rtnl.News, error) {
	news, err := f.monitor.Next()
	if err != nil {
		f.links.mirror.forget()
	}
	f.links.mirror.hear(news)
	for _, n := range news {
		if name, ours := f.links.nameOf(n.Link); ours && n.Change == rtnl.LinkGone && !f.links.again(n.Link.Index) {
			f.links.memory.lost(name, n.Link.Index)
		}
	}
	return news, err
}

// again reports whether a link is at an index that the kernel has told is gone: one that
// was made again before the news was read.
func (l *Links) again(index int) bool {
	names, err := l.conn.Names(index)
	return err == nil && names[0] != ""
}

// Close ends the monitor: from now on all looks list the links. It waits for a
// list that is under way ahead.
func (f *Follower) Close() error {
	m := &f.links.mirror
	m.mu.Lock()
	m.followed = false
	m.mu.Unlock()
	m.forget()
	m.ready(context.Background())
	return f.monitor.Close()
}

// hear takes note of news.
func (m *mirror) hear(news []rtnl.News) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.listing > 0 {
		m.missed = append(m.missed, news...)
	}
	m.apply(news)
}

// apply brings the links up to date. mirror.mu is held.
func (m *mirror) apply(news []rtnl.News) {
	for _, n := range news {
		switch {
		case n.Change == rtnl.Lost:
			m.links = nil
		case m.links == nil || n.Change == rtnl.RouteGone:
		case n.Change == rtnl.LinkGone || !m.own(n.Link):
			delete(m.links, n.Link.Index)
		default:
			m.links[n.Link.Index] = n.Link
		}
	}
}

func (m *mirror) forget() { m.hear([]rtnl.News{{Change: rtnl.Lost}}) }

// list returns what read lists, and keeps it if it is all.
func (m *mirror) list(read func() ([]rtnl.Link, error)) ([]rtnl.Link, error) {
	m.mu.Lock()
	m.listing++
	m.mu.Unlock()
	links, err := read()
	m.mu.Lock()
	defer m.mu.Unlock()
	if err == nil && m.followed {
		m.links, m.listed = make(map[int]rtnl.Link, len(links)), time.Now()
		for _, l := range links {
			m.links[l.Index] = l
		}
		m.apply(m.missed)
	}
	if m.listing--; m.listing == 0 {
		m.missed = nil
	}
	return links, err
}

// glance returns the links as they are known to be; ok is false if they have to
// be listed.
func (m *mirror) glance(ctx context.Context) (links []rtnl.Link, ok bool) {
	m.ready(ctx)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.links == nil || time.Since(m.listed) > relist {
		return nil, false
	}
	return slices.Collect(maps.Values(m.links)), true
}

// unheard takes out of what a glance has seen, and out of the mirror, the links that
// are not called so, or not there: each has to be looked at by itself. What is told of
// one later puts it back. names is rtnl.Conn.Names, which takes 1 µs a link.
func (m *mirror) unheard(links []rtnl.Link, names func(indices ...int) ([]string, error)) ([]rtnl.Link, error) {
	others := func(links []rtnl.Link) (others []rtnl.Link, err error) {
		indices := make([]int, len(links))
		for i, l := range links {
			indices[i] = l.Index
		}
		now, err := names(indices...)
		if err != nil {
			return nil, err
		}
		for i, l := range links {
			if l.Name != now[i] {
				others = append(others, l)
			}
		}
		return others, nil
	}
	suspects, err := others(links)
	if err != nil || len(suspects) == 0 {
		return links, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	var known []rtnl.Link // as they are by now; nobody hears of more until it is compared
	out := map[int]bool{}
	for _, l := range suspects {
		out[l.Index] = true
		if l, ok := m.links[l.Index]; ok {
			known = append(known, l)
		}
	}
	gone, err := others(known)
	for _, l := range gone {
		delete(m.links, l.Index)
	}
	return slices.DeleteFunc(links, func(l rtnl.Link) bool { return out[l.Index] }), err
}

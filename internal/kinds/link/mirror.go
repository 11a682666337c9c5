package link

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/berth-net/berth/internal/kernel/rtnl"
)

// relist is how long the mirror relies on the kernel's news before it lists the links
// again.
const relist = 10 * time.Minute

// mirror is the last list of the instance's links, kept up to date by the kernel's news of changes. The
// mirror exists because listing 5,000 links takes the kernel a fifth of a second: for each link the
// kernel walks the ids of all pods' network namespaces (net_eq_idr, net/core/net_namespace.c).
//
// The mirror lags behind the kernel: it lacks changes whose news nobody has read yet. So if
// the mirror shows that a link differs, its reader has to look at the link itself. The
// mirror also lacks changes whose news the monitor's filter drops (see rtnl.Monitor). So a
// link that joins the cut group stays in the mirror as it was. The same goes for a link that
// loses at once everything by which the filter recognizes it, including its name (see
// unheard).
type mirror struct {
	own func(rtnl.Link) bool // whether a link is the instance's

	mu       sync.Mutex
	followed bool              // a Follower passes all news to hear
	ahead    chan struct{}     // closed when the list of ListAhead has ended; nil: there is none
	links    map[int]rtnl.Link // by index; nil: the next look has to list the links
	listed   time.Time
	listing  int         // how many lists are under way
	missed   []rtnl.News // news that came while lists are under way; a list may have read a link before the link changed
}

// Follow returns m as a Follower. A caller that calls the Follower's Next all the time keeps the
// mirror up to date, so that later glances need not list all links. m has to be a monitor
// of the same instance, and nobody else may read the monitor.
func (l *Links) Follow(m *rtnl.Monitor) *Follower {
	l.mirror.mu.Lock()
	defer l.mirror.mu.Unlock()
	l.mirror.followed = true
	return &Follower{m, l}
}

// ListAhead begins to list the links in the background. The first glance waits for that
// list and uses it. Call it once, after Follow.
func (l *Links) ListAhead() {
	ahead := make(chan struct{})
	l.mirror.mu.Lock()
	l.mirror.ahead = ahead
	l.mirror.mu.Unlock()
	go func() {
		defer close(ahead)
		_, _ = l.list(context.Background(), nil) // after an error the first glance lists the links itself
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

// Follower is a monitor that passes its news on to the mirror and memory of Links.
type Follower struct {
	monitor *rtnl.Monitor
	links   *Links
}

// Next does what rtnl.Monitor's Next does, and passes the news on.
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

// again reports whether a link has an index whose link, as the kernel's news say, is gone: then
// somebody made the link again before the Follower read the news.
func (l *Links) again(index int) bool {
	names, err := l.conn.Names(index)
	return err == nil && names[0] != ""
}

// Close ends the monitor: from now on every look lists the links. Close waits until the list of
// ListAhead has ended.
func (f *Follower) Close() error {
	m := &f.links.mirror
	m.mu.Lock()
	m.followed = false
	m.mu.Unlock()
	m.forget()
	m.ready(context.Background())
	return f.monitor.Close()
}

// hear brings the mirror up to date with news.
func (m *mirror) hear(news []rtnl.News) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.listing > 0 {
		m.missed = append(m.missed, news...)
	}
	m.apply(news)
}

// apply changes m.links as news say. The caller holds m.mu.
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

// list returns what read lists, and keeps it as the mirror's links if the list is complete.
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

// glance returns the mirror's links; ok is false if the caller has to list them.
func (m *mirror) glance(ctx context.Context) (links []rtnl.Link, ok bool) {
	m.ready(ctx)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.links == nil || time.Since(m.listed) > relist {
		return nil, false
	}
	return slices.Collect(maps.Values(m.links)), true
}

// unheard removes links from the result of a glance, and from the mirror, that have another name by now
// or are gone, although no news said so. Verify then looks up each of these links by itself. Later news
// of a link put it back into the mirror. names is rtnl.Conn.Names, which takes 1 µs for each link.
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
	var known []rtnl.Link // the suspects as the mirror has them now; m.mu keeps news out until the function others has compared them
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

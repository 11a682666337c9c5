package link

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/stamp"
)

// News that come during a list of the links win over the list, because the kernel may have read the
// list before the news.
func TestMirrorHearsWhileItLists(t *testing.T) {
	m := mirror{own: ours, followed: true}
	old := []rtnl.Link{{Index: 1, Name: "btest1"}, {Index: 2, Name: "btest2"}, {Index: 3, Name: "btest3"}}
	_, err := m.list(func() ([]rtnl.Link, error) {
		_, err := m.list(func() ([]rtnl.Link, error) { // another list at the same time
			m.hear([]rtnl.News{{Change: rtnl.LinkGone, Link: old[0]}})
			return old, nil
		})
		m.hear([]rtnl.News{{Change: rtnl.LinkSet, Link: rtnl.Link{Index: 2, Name: "btest2", MTU: 1300}}})
		return old, err
	})
	must(t, err)
	got, ok := m.glance(t.Context())
	slices.SortFunc(got, func(a, b rtnl.Link) int { return a.Index - b.Index })
	want := []rtnl.Link{{Index: 2, Name: "btest2", MTU: 1300}, old[2]}
	if !ok || !slices.Equal(got, want) {
		t.Errorf("got %v, %v; want %v", got, ok, want)
	}
	if len(m.missed) > 0 {
		t.Errorf("%d pieces of news are kept for nobody", len(m.missed))
	}
}

// After an incomplete list, or after lost news, a glance cannot use the mirror.
func TestMirrorKnowsWhatItLacks(t *testing.T) {
	whole := func() ([]rtnl.Link, error) { return []rtnl.Link{{Index: 1, Name: "btest1"}}, nil }
	for what, spoil := range map[string]func(*mirror){
		"nothing listed": func(*mirror) {},
		"half a list":    func(m *mirror) { m.list(func() ([]rtnl.Link, error) { return nil, errors.New("interrupted") }) },
		"lost news":      func(m *mirror) { m.list(whole); m.hear([]rtnl.News{{Change: rtnl.Lost}}) },
		"news lost while listing": func(m *mirror) {
			m.list(func() ([]rtnl.Link, error) { m.hear([]rtnl.News{{Change: rtnl.Lost}}); return whole() })
		},
		"nobody tells": func(m *mirror) { m.followed = false; m.list(whole) },
		"long ago":     func(m *mirror) { m.list(whole); m.listed = m.listed.Add(-2 * relist) },
	} {
		m := mirror{own: ours, followed: true}
		spoil(&m)
		if links, ok := m.glance(t.Context()); ok {
			t.Errorf("%s: a glance sees %v", what, links)
		}
	}
	m := mirror{own: ours, followed: true}
	m.list(whole)
	if links, ok := m.glance(t.Context()); !ok || len(links) != 1 {
		t.Errorf("after a list a glance sees %v, %v", links, ok)
	}
}

// ours reports whether a mirror of these tests keeps a link.
func ours(l rtnl.Link) bool { return strings.HasPrefix(l.Name, "btest") }

// known waits for the list of ListAhead, and reports whether a glance can do without a
// list of its own.
func (l *Links) known(t testing.TB) bool {
	l.mirror.ready(t.Context())
	_, ok := l.mirror.glance(t.Context())
	return ok
}

// Glances use the list of ListAhead, provided that a Follower follows the links.
func TestListAhead(t *testing.T) {
	conn, groups, l := openLinks(t)
	if l.known(t) {
		t.Error("nobody has listed, and the links are known")
	}
	m, err := conn.Monitor(groups, stamp.Links("test"))
	must(t, err)
	f := l.Follow(m)
	l.ListAhead()
	if !l.known(t) {
		t.Error("the links were listed ahead, and are not known")
	}
	if err := f.Close(); err != nil || l.known(t) {
		t.Errorf("nobody tells any more, and the links are known; %v", err)
	}
}

package link

import (
	"cmp"
	"sync"
)

// memory knows at which index each link was last seen, by the name that ADD gave
// it. It is no truth, only a way: whose the link at an index is its alias says, or
// enough of what else ADD gave it.
type memory struct {
	mu    sync.Mutex
	links map[string]remembered
	// strays are where links of the instance's groups are that say nothing else of
	// whose they are, by their MACs.
	strays map[string]int
}

type remembered struct {
	index     int
	last      int  // where it was, of a link that is deleted and may be made again
	cut       bool // and not known to be deleted yet
	unsettled bool // ADD has yet to wait for its pod
}

func (m *memory) change(name string, f func(*remembered)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.links == nil {
		m.links = map[string]remembered{}
	}
	r := m.links[name]
	f(&r)
	m.links[name] = r
}

// see notes where a link is.
func (m *memory) see(name string, index int) {
	m.change(name, func(r *remembered) { r.index = index })
}

// cut notes that a link is cut off.
func (m *memory) cut(name string, index int) {
	m.change(name, func(r *remembered) { r.index, r.cut = index, true })
}

// settling notes whether a link's pod has to be waited for.
func (m *memory) settling(name string, wait bool) {
	m.change(name, func(r *remembered) { r.unsettled = wait })
}

// get returns what is known of a link.
func (m *memory) get(name string) remembered {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.links[name]
}

// stray notes where a link is of which only its MAC may say whose it is.
func (m *memory) stray(mac string, index int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.strays == nil {
		m.strays = map[string]int{}
	}
	m.strays[mac] = index
}

// strayed returns where a link with a MAC is that says nothing else; 0: there is none.
func (m *memory) strayed(mac string) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.strays[mac]
}

// at returns the name of the link that was last seen at an index. It looks at all.
func (m *memory) at(index int) (name string, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for name, r := range m.links {
		if r.index == index {
			return name, true
		}
	}
	return "", false
}

// index returns where a link was last seen.
func (m *memory) index(name string) (int, bool) {
	r := m.get(name)
	return r.index, r.index != 0
}

// last returns where a link was last seen, though it may be deleted since; 0: nowhere.
func (m *memory) last(name string) int {
	r := m.get(name)
	return cmp.Or(r.index, r.last)
}

// dying returns the names of the links that are cut off and not yet deleted.
func (m *memory) dying() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var names []string
	for name, r := range m.links {
		if r.cut {
			names = append(names, name)
		}
	}
	return names
}

// gone forgets a link.
func (m *memory) gone(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.links, name)
}

// lost forgets all of a link that is not at an index any more, but that it was there:
// it may be made again.
func (m *memory) lost(name string, index int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.links[name].index == index {
		m.links[name] = remembered{last: index}
	}
}

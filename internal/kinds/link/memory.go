package link

import (
	"cmp"
	"sync"
)

// memory knows at which index each link was last seen, by the name that ADD gave it. An index is only a
// way to find a link: the index's reader checks whose link has the index, by the link's alias or by
// what else ADD gave the link.
type memory struct {
	mu    sync.Mutex
	links map[string]remembered
	// strays are the indices, by MAC, of links that only their MAC may assign to an owner: the strays
	// of the last list of all links, and the strays in the instance's groups of which the kernel has
	// told since.
	strays map[string]int
}

type remembered struct {
	index     int
	last      int  // the former index of a link that others have deleted and that Acquire may make again
	cut       bool // the link is cut off, and as far as the agent knows not deleted yet
	unsettled bool // ADD still has to wait until the pod's addresses receive
	// leaving is closed once the kernel has answered the deletion of the link at the index last, which the
	// link gets again; nil: no answer is missing.
	leaving <-chan struct{}
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

// see notes a link's index.
func (m *memory) see(name string, index int) {
	m.change(name, func(r *remembered) { r.index = index })
}

// move notes a link's index, if the memory has the link.
func (m *memory) move(name string, index int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if r, ok := m.links[name]; ok && !r.waits() { // else the news is older than the deletion
		r.index = index
		m.links[name] = r
	}
}

// born notes the index of a new link, which nobody has cut off. A link that the memory has already was made
// before, and others have deleted it.
func (m *memory) born(name string, index int) {
	m.change(name, func(r *remembered) { r.last, r.index, r.cut, r.leaving = cmp.Or(r.index, r.last), index, false, nil })
}

// cut notes that a link is cut off.
func (m *memory) cut(name string, index int) {
	m.change(name, func(r *remembered) { r.index, r.cut = index, true })
}

// revived notes that a link is not cut off any more.
func (m *memory) revived(name string) {
	m.change(name, func(r *remembered) { r.cut = false })
}

// settling notes whether ADD still has to wait until the pod's addresses receive.
func (m *memory) settling(name string, wait bool) {
	m.change(name, func(r *remembered) { r.unsettled = wait })
}

// get returns what the memory knows of a link.
func (m *memory) get(name string) remembered {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.links[name]
}

// stray notes the index of a link that only its MAC may assign to an owner.
func (m *memory) stray(mac string, index int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.strays == nil {
		m.strays = map[string]int{}
	}
	m.strays[mac] = index
}

// strew notes all strays of a list of all links.
func (m *memory) strew(strays map[string]int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.strays = strays
}

// strayed returns the index of the stray with a MAC; 0: there is none.
func (m *memory) strayed(mac string) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.strays[mac]
}

// at returns the name of the link that was last seen at an index. It goes through all links
// that the memory knows.
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

// index returns the index at which this agent last saw a link; false: the agent has not seen the link,
// or the link is deleted.
func (m *memory) index(name string) (int, bool) {
	r := m.get(name)
	return r.index, r.index != 0
}

// last returns the index at which this agent last saw a link, even if others have deleted the link
// since; 0: the agent never saw the link.
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

// gone forgets a link that Release has deleted.
func (m *memory) gone(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.links, name)
}

// leaves is gone for a half-made link whose deletion the kernel has not answered. If the link was made again
// at a former index, the memory keeps the index: the pod must not get another one by what keeps the kernel
// waiting.
func (m *memory) leaves(name string, answered <-chan struct{}) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.links[name]
	delete(m.links, name)
	if r.last != 0 {
		m.links[name] = remembered{last: cmp.Or(r.index, r.last), leaving: answered}
	}
}

// waits reports whether a link can be made only after the kernel has answered a deletion (leaves): until then
// the deletion may still be under way, and would delete a new link at that index.
func (m *memory) waits(name string) bool {
	return m.get(name).waits()
}

func (r remembered) waits() bool {
	if r.leaving == nil {
		return false
	}
	select {
	case <-r.leaving:
		return false
	default:
		return true
	}
}

// lost notes that others have deleted a link. If the memory has the link at this index, lost forgets
// everything but the index: a new link of the same name gets the index again.
func (m *memory) lost(name string, index int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.links[name].index == index {
		m.links[name] = remembered{last: index}
	}
}

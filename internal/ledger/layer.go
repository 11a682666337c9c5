package ledger

// layer is a map with changes over it that are not durable yet. The changes since a mark can
// be undone, for a commit that is refused; all changes can be merged into the map.
type layer[K comparable, V any] struct {
	base base[K, V]
	over map[K]slot[V]
	log  []logged[K, V]
}

// slot is a changed value; if it is not ok, the key was dropped.
type slot[V any] struct {
	val V
	ok  bool
}

// logged is what over had for a key before a change.
type logged[K comparable, V any] struct {
	key     K
	before  slot[V]
	changed bool // over had the key
}

// base is the map under a layer.
type base[K comparable, V any] interface {
	get(K) (V, bool)
	put(K, V)
	drop(K)
}

// table is a Go map as a layer's base.
type table[K comparable, V any] map[K]V

func (t table[K, V]) get(k K) (V, bool) { v, ok := t[k]; return v, ok }
func (t table[K, V]) put(k K, v V)      { t[k] = v }
func (t table[K, V]) drop(k K)          { delete(t, k) }

func newLayer[K comparable, V any](b base[K, V]) layer[K, V] {
	return layer[K, V]{base: b, over: map[K]slot[V]{}}
}

func (l *layer[K, V]) get(k K) (V, bool) {
	if s, ok := l.over[k]; ok {
		return s.val, s.ok
	}
	return l.base.get(k)
}

func (l *layer[K, V]) put(k K, v V) { l.set(k, slot[V]{v, true}) }

func (l *layer[K, V]) drop(k K) { l.set(k, slot[V]{}) }

func (l *layer[K, V]) set(k K, s slot[V]) {
	before, changed := l.over[k]
	l.log = append(l.log, logged[K, V]{k, before, changed})
	l.over[k] = s
}

// mark returns the present state of the changes, for back.
func (l *layer[K, V]) mark() int { return len(l.log) }

// back undoes every change since the mark.
func (l *layer[K, V]) back(mark int) {
	for i := len(l.log) - 1; i >= mark; i-- {
		if c := l.log[i]; c.changed {
			l.over[c.key] = c.before
		} else {
			delete(l.over, c.key)
		}
	}
	l.log = l.log[:mark]
}

// merge makes the changes in the map.
func (l *layer[K, V]) merge() {
	for k, s := range l.over {
		if s.ok {
			l.base.put(k, s.val)
		} else {
			l.base.drop(k)
		}
	}
}

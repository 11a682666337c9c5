package ledger

import "iter"

// layer is a map with changes over it that are not durable yet. The changes since a mark can
// be undone, for a commit that is refused; all changes can be merged into the map.
type layer[K comparable, V any] struct {
	base map[K]V
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

func newLayer[K comparable, V any](base map[K]V) layer[K, V] {
	return layer[K, V]{base: base, over: map[K]slot[V]{}}
}

func (l *layer[K, V]) get(k K) (V, bool) {
	if s, ok := l.over[k]; ok {
		return s.val, s.ok
	}
	v, ok := l.base[k]
	return v, ok
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
			l.base[k] = s.val
		} else {
			delete(l.base, k)
		}
	}
}

// all yields every value, in no particular order. The caller may drop the value that is
// being yielded.
func (l *layer[K, V]) all() iter.Seq2[K, V] {
	return func(yield func(K, V) bool) {
		for k, s := range l.over {
			if s.ok && !yield(k, s.val) {
				return
			}
		}
		for k, v := range l.base {
			if _, changed := l.over[k]; !changed && !yield(k, v) {
				return
			}
		}
	}
}

package attachment

import (
	"slices"

	"github.com/berth-net/berth/internal/stamp"
)

// Called returns the attachments that a deletion of a key is about. These are the
// attachments of that key or, if there are none, the adopted attachment whose alias is a
// shortened one that fits the key, or else those of a former CNI (Former). If several attachments have or
// had such an alias, Called returns none, and unsure is true: only a link's name can tell which of them is meant.
func (x *Index) Called(k Key) (es []*Entry, unsure bool) {
	if es, unsure = x.ours(k); len(es) == 0 && !unsure {
		es = x.Former(k)
	}
	return es, unsure
}

// Former returns what a former CNI made for a container under an interface's name. A runtime whose configuration names another network by
// now calls all of its attachments by that network's name, so the key's Network does not count. For an attachment that joins
// a former CNI's first one, Former returns that one: both are of the pod that goes.
func (x *Index) Former(k Key) (es []*Entry) {
	for _, e := range x.Container(k.ContainerID) {
		if !e.Record.Former || e.Record.Ifname != k.Ifname {
			continue
		}
		if first := x.Get(e.Record.First); first != nil && first.Record.Former {
			e = first
		}
		if !slices.Contains(es, e) {
			es = append(es, e)
		}
	}
	return es
}

// ours is Called without what a former CNI made under another network's name.
func (x *Index) ours(k Key) (es []*Entry, unsure bool) {
	es = x.Key(k)
	x.mu.RLock()
	defer x.mu.RUnlock()
	if len(x.shorts) == 0 { // the usual case
		return es, false
	}
	es = slices.DeleteFunc(es, func(e *Entry) bool { return x.shorts[e.Owner.ID] != nil })
	if len(es) > 0 {
		return es, false
	}
	for _, e := range x.shorts {
		if e.MayBe(k) {
			es = append(es, e)
		}
	}
	if len(es) > 1 || len(es) == 1 && es[0].Record.Alike {
		return nil, true
	}
	return es, false
}

// Shortened returns the adopted attachments whose alias is a shortened one that fits the key.
func (x *Index) Shortened(k Key) (es []*Entry) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	for _, e := range x.shorts {
		if e.MayBe(k) {
			es = append(es, e)
		}
	}
	return es
}

// short returns the stamp of an attachment that was adopted from a link whose alias may
// lack the end of the key. The record's key lacks the same end. short returns false for any other
// attachment.
func (e *Entry) short() (stamp.Stamp, bool) {
	if !e.Record.Adopted {
		return stamp.Stamp{}, false
	}
	s, ok := stamp.ParseEnd(e.Interface.Alias)
	k, err := s.Key()
	return s, ok && err == nil && s.Short() && k == e.Record.Key
}

// MayBe reports whether k may be the attachment's key: the key in its record may lack its
// end, and k begins with what the record has of it.
func (e *Entry) MayBe(k Key) bool {
	s, short := e.short()
	return short && s.Is(k)
}

// Keyless reports whether the attachment was adopted from a link whose alias said nothing
// of the key. A deletion is about such an attachment if the deletion names its link.
func (e *Entry) Keyless() bool { return e.Record.Adopted && e.Record.Key == Key{} }

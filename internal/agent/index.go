package agent

import (
	"bytes"
	"fmt"
	"slices"
	"sync"

	"github.com/berth-net/berth/internal/attachment"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/ledger"
	"github.com/berth-net/berth/internal/stamp"
)

// entry is an attachment as the ledger has it, decoded once.
type entry struct {
	owner  hold.Owner
	record attachment.Record
}

// slot is a place in a pod that one link can have at a time.
type slot struct {
	dev, ino, id uint64
	ifname       string
}

func slotOf(r ns.Ref, ifname string) slot { return slot{r.Dev, r.Ino, r.ID, ifname} }

// index finds attachments by what requests call them. It is a view on the
// ledger's commits, and knows nothing that is not there.
type index struct {
	mu          sync.RWMutex
	entries     map[hold.ID]*entry
	byContainer map[string]map[hold.ID]*entry
	bySlot      map[slot]map[hold.ID]*entry
	shorts      map[hold.ID]*entry // adopted, and the record's key may lack an end
}

func newIndex() *index {
	return &index{
		entries:     map[hold.ID]*entry{},
		byContainer: map[string]map[hold.ID]*entry{},
		bySlot:      map[slot]map[hold.ID]*entry{},
		shorts:      map[hold.ID]*entry{},
	}
}

// apply follows one change of an owner.
func (x *index) apply(edit ledger.Edit) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if edit.After == nil {
		x.drop(edit.Before.ID)
		return nil
	}
	id := edit.After.ID
	if old := x.entries[id]; old != nil && bytes.Equal(old.owner.Meta, edit.After.Meta) { // most often
		x.put(id, &entry{*edit.After, old.record})
		return nil
	}
	rec, ok, err := attachment.Decode(*edit.After)
	if err != nil {
		return fmt.Errorf("index: %w", err)
	}
	x.drop(id)
	if ok {
		x.put(id, &entry{*edit.After, rec})
	}
	return nil
}

func (x *index) put(id hold.ID, e *entry) {
	x.entries[id] = e
	place(x.byContainer, e.record.ContainerID, id, e)
	place(x.bySlot, slotOf(e.record.Netns, e.record.Ifname), id, e)
	if _, short := e.short(); short {
		x.shorts[id] = e
	} else {
		delete(x.shorts, id)
	}
}

func (x *index) drop(id hold.ID) {
	e := x.entries[id]
	if e == nil {
		return
	}
	delete(x.entries, id)
	delete(x.shorts, id)
	displace(x.byContainer, e.record.ContainerID, id)
	displace(x.bySlot, slotOf(e.record.Netns, e.record.Ifname), id)
}

func place[K comparable](m map[K]map[hold.ID]*entry, k K, id hold.ID, e *entry) {
	if m[k] == nil {
		m[k] = map[hold.ID]*entry{}
	}
	m[k][id] = e
}

func displace[K comparable](m map[K]map[hold.ID]*entry, k K, id hold.ID) {
	if delete(m[k], id); len(m[k]) == 0 {
		delete(m, k)
	}
}

// get returns one attachment, or nil.
func (x *index) get(id hold.ID) *entry {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.entries[id]
}

// all returns every attachment, in no order.
func (x *index) all() []*entry {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return values(x.entries)
}

// container returns the attachments of a container id.
func (x *index) container(id string) []*entry {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return values(x.byContainer[id])
}

// key returns the attachments of a key: at most one of them is wanted.
func (x *index) key(k attachment.Key) []*entry {
	var es []*entry
	for _, e := range x.container(k.ContainerID) {
		if e.record.Key == k {
			es = append(es, e)
		}
	}
	return es
}

// called returns the attachments that a deletion of a key is about: those of the
// key, or else the adopted one whose alias is that of the key, as far as it goes. It
// is unsure, and returns none, if several have or had that alias: their links alone
// tell which is meant.
func (x *index) called(k attachment.Key) (es []*entry, unsure bool) {
	es = x.key(k)
	x.mu.RLock()
	defer x.mu.RUnlock()
	if len(x.shorts) == 0 { // most often
		return es, false
	}
	es = slices.DeleteFunc(es, func(e *entry) bool { return x.shorts[e.owner.ID] != nil })
	if len(es) > 0 {
		return es, false
	}
	for _, e := range x.shorts {
		if e.mayBe(k) {
			es = append(es, e)
		}
	}
	if len(es) > 1 || len(es) == 1 && es[0].record.Alike {
		return nil, true
	}
	return es, false
}

// short returns the stamp of an attachment that was adopted from a link whose alias
// may lack the end of its key, as does the record then.
func (e *entry) short() (stamp.Stamp, bool) {
	if !e.record.Adopted {
		return stamp.Stamp{}, false
	}
	spec, err := attachment.Link(e.owner)
	if err != nil {
		return stamp.Stamp{}, false
	}
	s, ok := stamp.Parse(spec.Alias)
	k, err := s.Key()
	return s, ok && err == nil && s.Short() && k == e.record.Key
}

// mayBe reports whether the attachment is short, and its alias that of a key.
func (e *entry) mayBe(k attachment.Key) bool {
	s, short := e.short()
	return short && s.Is(k)
}

// keyless reports whether the attachment was adopted from a link whose alias said
// nothing of its key: a deletion means it if it names its link, and nobody has its key.
func (e *entry) keyless() bool { return e.record.Adopted && e.record.Key == attachment.Key{} }

// slot returns the attachments with a link at that place in a pod.
func (x *index) slot(s slot) []*entry {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return values(x.bySlot[s])
}

func values(m map[hold.ID]*entry) []*entry {
	es := make([]*entry, 0, len(m))
	for _, e := range m {
		es = append(es, e)
	}
	return es
}

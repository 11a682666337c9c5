package attachment

import (
	"bytes"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/ledger"
	"github.com/berth-net/berth/internal/stamp"
)

// Entry is an attachment as the ledger has it, decoded once.
type Entry struct {
	Owner     hold.Owner
	Record    Record
	Interface Interface // what the plan says of it; zero if nothing does
}

// Interface is what an attachment's plan says of its interface.
type Interface struct {
	Host      string // name of the host's end
	Alias     string // of the host's end
	MAC       string // of the pod's end
	MTU       int    // bytes
	Addresses []netip.Addr
}

// slot is a place in a pod that one link can have at a time.
type slot struct {
	dev, ino, id uint64
	ifname       string
}

func slotOf(r ns.Ref, ifname string) slot { return slot{r.Dev, r.Ino, r.ID, ifname} }

// Index finds attachments by what requests call them. It is a view on the
// ledger's commits, and knows nothing that is not there.
type Index struct {
	describe func(hold.Owner, Record) Interface

	mu          sync.RWMutex
	entries     map[hold.ID]*Entry
	byContainer map[string]map[hold.ID]*Entry
	bySlot      map[slot]map[hold.ID]*Entry
	shorts      map[hold.ID]*Entry // adopted, and the record's key may lack an end
}

// NewIndex returns an empty index.
func NewIndex() *Index {
	return &Index{
		describe:    func(hold.Owner, Record) Interface { return Interface{} },
		entries:     map[hold.ID]*Entry{},
		byContainer: map[string]map[hold.ID]*Entry{},
		bySlot:      map[slot]map[hold.ID]*Entry{},
		shorts:      map[hold.ID]*Entry{},
	}
}

// Describe tells an index that is empty yet how to find out what the plan of an attachment,
// an owner with its record, says of its interface.
func (x *Index) Describe(by func(hold.Owner, Record) Interface) { x.describe = by }

// Entry is an owner with its record, decoded.
func (x *Index) Entry(o hold.Owner, r Record) *Entry { return &Entry{o, r, x.describe(o, r)} }

// Decode is the attachment that an owner is; nil if it is none, or cannot be read.
func (x *Index) Decode(o hold.Owner) *Entry {
	if r, ok, err := Decode(o); ok && err == nil {
		return x.Entry(o, r)
	}
	return nil
}

// Apply follows one change of an owner.
func (x *Index) Apply(edit ledger.Edit) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if edit.After == nil {
		x.drop(edit.Before.ID)
		return nil
	}
	id := edit.After.ID
	if old := x.entries[id]; old != nil && bytes.Equal(old.Owner.Meta, edit.After.Meta) { // most often
		x.put(id, x.Entry(*edit.After, old.Record))
		return nil
	}
	rec, ok, err := Decode(*edit.After)
	if err != nil {
		return fmt.Errorf("index: %w", err)
	}
	x.drop(id)
	if ok {
		x.put(id, x.Entry(*edit.After, rec))
	}
	return nil
}

func (x *Index) put(id hold.ID, e *Entry) {
	x.entries[id] = e
	place(x.byContainer, e.Record.ContainerID, id, e)
	place(x.bySlot, slotOf(e.Record.Netns, e.Record.Ifname), id, e)
	if _, short := e.short(); short {
		x.shorts[id] = e
	} else {
		delete(x.shorts, id)
	}
}

func (x *Index) drop(id hold.ID) {
	e := x.entries[id]
	if e == nil {
		return
	}
	delete(x.entries, id)
	delete(x.shorts, id)
	displace(x.byContainer, e.Record.ContainerID, id)
	displace(x.bySlot, slotOf(e.Record.Netns, e.Record.Ifname), id)
}

func place[K comparable](m map[K]map[hold.ID]*Entry, k K, id hold.ID, e *Entry) {
	if m[k] == nil {
		m[k] = map[hold.ID]*Entry{}
	}
	m[k][id] = e
}

func displace[K comparable](m map[K]map[hold.ID]*Entry, k K, id hold.ID) {
	if delete(m[k], id); len(m[k]) == 0 {
		delete(m, k)
	}
}

// Get returns one attachment, or nil.
func (x *Index) Get(id hold.ID) *Entry {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.entries[id]
}

// All returns every attachment, in no order.
func (x *Index) All() []*Entry {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return values(x.entries)
}

// Container returns the attachments of a container id.
func (x *Index) Container(id string) []*Entry {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return values(x.byContainer[id])
}

// Key returns the attachments of a key: at most one of them is wanted.
func (x *Index) Key(k Key) []*Entry {
	var es []*Entry
	for _, e := range x.Container(k.ContainerID) {
		if e.Record.Key == k {
			es = append(es, e)
		}
	}
	return es
}

// Called returns the attachments that a deletion of a key is about: those of the
// key, or else the adopted one whose alias is that of the key, as far as it goes. It
// is unsure, and returns none, if several have or had that alias: their links alone
// tell which is meant.
func (x *Index) Called(k Key) (es []*Entry, unsure bool) {
	es = x.Key(k)
	x.mu.RLock()
	defer x.mu.RUnlock()
	if len(x.shorts) == 0 { // most often
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

// At reports whether the attachment has a place in a pod.
func (e *Entry) At(netns ns.Ref, ifname string) bool {
	return slotOf(e.Record.Netns, e.Record.Ifname) == slotOf(netns, ifname)
}

// short returns the stamp of an attachment that was adopted from a link whose alias
// may lack the end of its key. The record's key lacks the same end.
func (e *Entry) short() (stamp.Stamp, bool) {
	if !e.Record.Adopted {
		return stamp.Stamp{}, false
	}
	s, ok := stamp.Parse(e.Interface.Alias)
	k, err := s.Key()
	return s, ok && err == nil && s.Short() && k == e.Record.Key
}

// MayBe reports whether the attachment's key lacks an end, and begins as a key does.
func (e *Entry) MayBe(k Key) bool {
	s, short := e.short()
	return short && s.Is(k)
}

// Keyless reports whether the attachment was adopted from a link whose alias said
// nothing of its key. A deletion is about it if it names its link.
func (e *Entry) Keyless() bool { return e.Record.Adopted && e.Record.Key == Key{} }

// Slot returns the attachments with a link at that place in a pod.
func (x *Index) Slot(netns ns.Ref, ifname string) []*Entry {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return values(x.bySlot[slotOf(netns, ifname)])
}

// Homeless returns a test of owners: whether one is an attachment of another epoch than
// this. After a reboot a path, and even an inode, may be another pod's.
func (x *Index) Homeless(epoch string) func(hold.Owner) bool {
	return func(o hold.Owner) bool {
		e := x.Get(o.ID)
		return e != nil && e.Record.Epoch != epoch
	}
}

// Since returns a function that says when the last ADD began that an attachment of this
// epoch was the answer to, in CLOCK_BOOTTIME, ns; 0 if that is not known.
func (x *Index) Since(epoch string) func(hold.ID) int64 {
	return func(id hold.ID) int64 {
		if e := x.Get(id); e != nil && e.Record.Epoch == epoch {
			return e.Record.Started
		}
		return 0
	}
}

// Follow keeps the index in step with the ledger's commits. A record that cannot be read
// is told to bad.
func (x *Index) Follow(bad func(error)) func(ledger.Change) {
	return func(c ledger.Change) {
		for _, edit := range c.Owners {
			if err := x.Apply(edit); err != nil {
				bad(err)
			}
		}
	}
}

// Restore fills the index from a ledger's owners.
func (x *Index) Restore(owners []hold.Owner) error {
	for _, o := range owners {
		if err := x.Apply(ledger.Edit{After: &o}); err != nil {
			return err
		}
	}
	return nil
}

// Matching returns the attachments that a filter matches, but for its State.
func (x *Index) Matching(f api.Filter) []*Entry {
	candidates := x.All
	if f.Container != "" {
		candidates = func() []*Entry { return x.Container(f.Container) }
	}
	return slices.DeleteFunc(candidates(), func(e *Entry) bool { return !e.Matches(f) })
}

func values(m map[hold.ID]*Entry) []*Entry {
	es := make([]*Entry, 0, len(m))
	for _, e := range m {
		es = append(es, e)
	}
	return es
}

// Matches reports whether a filter matches, but for its State.
func (e *Entry) Matches(f api.Filter) bool {
	r := e.Record
	var pod api.Pod
	if r.Pod != nil {
		pod = *r.Pod
	}
	for _, c := range []struct{ want, have string }{
		{f.Network, r.Network},
		{f.Container, r.ContainerID},
		{f.Ifname, r.Ifname},
		{f.Namespace, pod.Namespace},
		{f.Pod, pod.Name},
		{f.UID, pod.UID},
		{f.Link, e.Interface.Host},
	} {
		if c.want != "" && c.want != c.have {
			return false
		}
	}
	return f.Address == "" || slices.ContainsFunc(e.Interface.Addresses, func(ip netip.Addr) bool { return ip.String() == f.Address })
}

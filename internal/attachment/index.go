package attachment

import (
	"bytes"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel/nft"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/ledger"
)

// Entry is an attachment as the ledger has it, decoded once.
type Entry struct {
	Owner     hold.Owner
	Record    Record
	Interface Interface // what the plan says of the interface; zero if the plan says nothing
}

// Interface is what an attachment's plan says of its interface.
type Interface struct {
	Host      string // name of the host's end
	Alias     string // of the host's end
	MAC       string // of the pod's end
	MTU       int    // bytes
	Addresses []netip.Addr
	Ports     []nft.Mapping // of the node, that lead to the pod; sorted
	Ingress   rtnl.Rate     // of what the pod gets
	Egress    rtnl.Rate     // of what the pod sends
}

// Limited reports whether there is a limit of the interface's bandwidth.
func (i Interface) Limited() bool { return i.Ingress != (rtnl.Rate{}) || i.Egress != (rtnl.Rate{}) }

// slot is a place in a pod, which only one link can have at a time.
type slot struct {
	dev, ino, id uint64
	ifname       string
}

func slotOf(r ns.Ref, ifname string) slot { return slot{r.Dev, r.Ino, r.ID, ifname} }

// Index finds attachments by what requests call them. It is a view on the ledger's commits:
// all that it knows comes from them.
type Index struct {
	describe func(hold.Owner, Record) Interface

	mu          sync.RWMutex
	entries     map[hold.ID]*Entry
	byContainer map[string]map[hold.ID]*Entry
	bySlot      map[slot]map[hold.ID]*Entry
	byFirst     map[hold.ID]map[hold.ID]*Entry // further attachments, by the first ones
	shorts      map[hold.ID]*Entry             // adopted attachments whose key may lack its end
	wanted      int                            // how many entries are wanted
}

// NewIndex returns an empty index.
func NewIndex() *Index {
	return &Index{
		describe:    func(hold.Owner, Record) Interface { return Interface{} },
		entries:     map[hold.ID]*Entry{},
		byContainer: map[string]map[hold.ID]*Entry{},
		bySlot:      map[slot]map[hold.ID]*Entry{},
		byFirst:     map[hold.ID]map[hold.ID]*Entry{},
		shorts:      map[hold.ID]*Entry{},
	}
}

// Describe sets the function that returns what an attachment's plan says of its interface,
// by its owner and its record. It is to be called while the index is empty.
func (x *Index) Describe(by func(hold.Owner, Record) Interface) { x.describe = by }

// Entry returns the entry of an owner and its decoded record.
func (x *Index) Entry(o hold.Owner, r Record) *Entry { return &Entry{o, r, x.describe(o, r)} }

// Decode returns the entry of an owner. It returns nil if the owner is no attachment, or if
// its record cannot be read. The index may lack the owner; if the index has the owner, the entry
// shares the record's texts with the index.
func (x *Index) Decode(o hold.Owner) *Entry {
	if had := x.Get(o.ID); had != nil && bytes.Equal(had.Owner.Meta, o.Meta) {
		return x.Entry(o, had.Record)
	}
	if r, ok, err := Decode(o); ok && err == nil {
		return x.Entry(o, r)
	}
	return nil
}

// Apply brings the index up to date with one change of an owner.
func (x *Index) Apply(edit ledger.Edit) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if edit.After == nil {
		x.drop(edit.Before.ID)
		return nil
	}
	id := edit.After.ID
	if old := x.entries[id]; old != nil && bytes.Equal(old.Owner.Meta, edit.After.Meta) { // the usual case: the record need not be decoded again
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
	x.uncount(id)
	x.entries[id] = e
	if e.Owner.Wanted() {
		x.wanted++
	}
	place(x.byContainer, e.Record.ContainerID, id, e)
	place(x.bySlot, slotOf(e.Record.Netns, e.Record.Ifname), id, e)
	if e.Record.Further() {
		place(x.byFirst, e.Record.First, id, e)
	}
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
	x.uncount(id)
	delete(x.entries, id)
	delete(x.shorts, id)
	displace(x.byContainer, e.Record.ContainerID, id)
	displace(x.bySlot, slotOf(e.Record.Netns, e.Record.Ifname), id)
	displace(x.byFirst, e.Record.First, id)
}

// uncount takes an entry out of the count of wanted ones, before the entry changes or goes.
func (x *Index) uncount(id hold.ID) {
	if e := x.entries[id]; e != nil && e.Owner.Wanted() {
		x.wanted--
	}
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

// Wanted returns how many attachments there are that are not being released.
func (x *Index) Wanted() int {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.wanted
}

// Container returns the attachments of a container id.
func (x *Index) Container(id string) []*Entry {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return values(x.byContainer[id])
}

// Key returns the first attachments of a key: at most one of them is wanted.
func (x *Index) Key(k Key) []*Entry {
	var es []*Entry
	for _, e := range x.Container(k.ContainerID) {
		if e.Record.Key == k && !e.Record.Further() {
			es = append(es, e)
		}
	}
	return es
}

// Pods returns the pods that are attached.
func (x *Index) Pods() (pods []api.Pod) {
	for _, e := range x.All() {
		if pod := e.Record.Pod; pod != nil && !e.Record.Further() {
			pods = append(pods, *pod)
		}
	}
	return pods
}

// Further returns the attachments that join a first one, in the order in which they came.
func (x *Index) Further(first hold.ID) []*Entry {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return slices.SortedFunc(maps.Values(x.byFirst[first]), func(a, b *Entry) int { return a.Owner.Joined - b.Owner.Joined })
}

// At reports whether the attachment has the place ifname in the pod with this network
// namespace.
func (e *Entry) At(netns ns.Ref, ifname string) bool {
	return slotOf(e.Record.Netns, e.Record.Ifname) == slotOf(netns, ifname)
}

// Slot returns the attachments that have the place ifname in the pod with this network
// namespace.
func (x *Index) Slot(netns ns.Ref, ifname string) []*Entry {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return values(x.bySlot[slotOf(netns, ifname)])
}

// Homeless returns a function that reports whether an owner is an attachment of another
// epoch than this one. After a reboot a path, and even an inode, may be another pod's.
func (x *Index) Homeless(epoch string) func(hold.Owner) bool {
	return func(o hold.Owner) bool {
		e := x.Get(o.ID)
		return e != nil && e.Record.Epoch != epoch
	}
}

// Since returns a function that says when the last ADD began that was answered with an
// attachment of this epoch, in CLOCK_BOOTTIME, ns. The function returns 0 if that is not known.
func (x *Index) Since(epoch string) func(hold.ID) int64 {
	return func(id hold.ID) int64 {
		if e := x.Get(id); e != nil && e.Record.Epoch == epoch {
			return e.Record.Started
		}
		return 0
	}
}

// Follow returns a function that keeps the index in step with the ledger's commits. It
// tells bad of each record that cannot be read.
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

// Matching returns the attachments that match a filter. It ignores the filter's State.
func (x *Index) Matching(f api.Filter) []*Entry {
	candidates := x.All
	if f.Container != "" {
		candidates = func() []*Entry { return x.Container(f.Container) }
	}
	return slices.DeleteFunc(candidates(), func(e *Entry) bool { return !e.Matches(f) })
}

func values(m map[hold.ID]*Entry) []*Entry {
	return slices.AppendSeq(make([]*Entry, 0, len(m)), maps.Values(m))
}

// Matches reports whether the attachment matches a filter. It ignores the filter's State.
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

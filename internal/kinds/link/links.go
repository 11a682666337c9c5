package link

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"

	"github.com/berth-net/berth/internal/stamp"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel/rtnl"
)

const (
	// batch is how many links one message deletes. All other changes of links,
	// addresses and routes on the node wait for it; 32 keep them waiting for
	// less than 20 ms.
	batch = 32
	// yield is the same beside ADDs, which wait for several: a few hundred links
	// a second, more than there can be ADDs.
	yield = 16
	// flight is how many such messages are under way. Most of their time they
	// wait outside the kernel's lock.
	flight = 4
)

// Options say where links are made, and for whom.
type Options struct {
	Conn   *rtnl.Conn   // to the node's network namespace
	Prefix string       // the first 4 characters of the instance's id
	Groups stamp.Groups // the instance's
	// Barrier reports whether what enters or leaves by the dying groups is
	// dropped now. Where it is not, Cut sets links down, which is slower. nil:
	// always.
	Barrier func() bool
	// Exposed is called when a link is mended that others had taken out of the live
	// group, or made a port of another: no rule has seen what began by it meanwhile. It
	// must not block. nil: nobody is told.
	Exposed func()
	// Since is when the last ADD began that an owner is there for (CLOCK_BOOTTIME in
	// nanoseconds); 0: no later one than its spec says. nil: always 0.
	Since func(hold.ID) int64
}

// Links makes, checks, cuts off and deletes the links of an instance.
type Links struct {
	conn    *rtnl.Conn
	prefix  string
	groups  stamp.Groups
	barrier func() bool
	exposed func()
	since   func(hold.ID) int64
	batches atomic.Uint32 // counts batches, for each to have a group of its own
	mirror  mirror
	memory  memory
	claims  claims
	turn    chan struct{} // holds one: who cuts a link off
	listed  atomic.Bool   // all links have been seen since the start
	once    sync.Mutex    // of listOnce
}

// New returns the links of an instance.
func New(o Options) *Links {
	l := &Links{conn: o.Conn, prefix: o.Prefix, groups: o.Groups, barrier: o.Barrier, exposed: o.Exposed, since: o.Since, turn: make(chan struct{}, 1)}
	if l.barrier == nil {
		l.barrier = func() bool { return true }
	}
	if l.exposed == nil {
		l.exposed = func() {}
	}
	if l.since == nil {
		l.since = func(hold.ID) int64 { return 0 }
	}
	l.mirror.own = l.own
	l.batches.Store(rand.Uint32()) // not where the last run of the agent was
	return l
}

// Kind returns the kind of these links.
func (l *Links) Kind() hold.Kind {
	return hold.Kind{
		Stage:   hold.Use,
		New:     func() hold.Spec { return new(Spec) },
		Acquire: l.acquire,
		Settle:  l.settle,
		Verify:  l.verify,
		Release: l.release,
		Batch:   batch,
		Flight:  flight,
		Yield:   yield,
		Cut:     l.cut,
		Sever:   l.sever,
		Find:    l.find,
	}
}

// spec returns a hold's spec. A name that is not the owner's is refused: what
// has it belongs to somebody else. The instance in it may be another, that this
// agent had before it lost it.
func (l *Links) spec(h hold.Hold) (*Spec, error) {
	s, ok := h.Spec.(*Spec)
	if !ok {
		return nil, fmt.Errorf("a hold of kind %s is not a link", h.Spec.Kind())
	}
	want := stamp.Link(l.prefix, h.Owner)
	if n := len(stamp.Links(l.prefix)); len(s.Name) != len(want) || s.Name[0] != want[0] || s.Name[n:] != want[n:] {
		return nil, fmt.Errorf("link %s is not that of %s, which is %s", s.Name, h.Owner, want)
	}
	return s, nil
}

// own reports whether a link is the instance's, and notes where it is.
func (l *Links) own(link rtnl.Link) bool {
	name, ok := l.nameOf(link)
	switch {
	case ok:
		l.memory.see(name, link.Index)
	case link.Veth && l.groups.Has(link.Group) && stampless(link):
		l.memory.stray(link.MAC, link.Index)
	}
	return ok
}

// gone takes note that a link that was at an index is not there any more; 0: it
// was nowhere.
func (l *Links) gone(name string, index int) {
	l.memory.gone(name)
	if index != 0 { // the kernel's news of it may have been dropped with its name
		l.mirror.hear([]rtnl.News{{Change: rtnl.LinkGone, Link: rtnl.Link{Index: index}}})
	}
}

// find returns all links of the instance by the names that ADD gave them, with
// what can be seen of them from the host. The netns, the pod's interface and its
// MAC cannot.
func (l *Links) find(ctx context.Context, look *hold.Look) ([]hold.Hold, error) {
	links, err := l.list(ctx, look)
	if err != nil && links == nil {
		return nil, fmt.Errorf("looking for links: %w", err)
	}
	if err == nil { // a list of all links is the most that find and verify cost
		look.Remember(l, links)
	}
	holds := make([]hold.Hold, 0, len(links))
	for name, link := range l.byName(links) {
		id, notOurs := hold.ParseID(name[len(stamp.Links(l.prefix)):])
		if notOurs != nil {
			continue
		}
		alias := link.Alias
		if stampless(*link) {
			alias = "" // it proves nothing
		}
		holds = append(holds, hold.Hold{Owner: id, Spec: &Spec{
			Name:    name,
			Alias:   alias,
			MTU:     link.MTU,
			HostMAC: link.MAC,
		}})
	}
	if err != nil {
		err = fmt.Errorf("looking for links: %w", err) // some may be missing
	}
	return holds, err
}

// byName returns links by the names that ADD gave them. Of two that claim to be
// the same the one that is called so is.
func (l *Links) byName(links []rtnl.Link) map[string]*rtnl.Link {
	all := make(map[string]*rtnl.Link, len(links))
	for i := range links {
		name, ok := l.nameOf(links[i])
		if other := all[name]; ok && (other == nil || other.Name != name) {
			all[name] = &links[i]
		}
	}
	return all
}

// list returns all links of the instance. An error of class
// kernel.ErrInterrupted comes with what was seen: some may be missing.
func (l *Links) list(ctx context.Context, look *hold.Look) ([]rtnl.Link, error) {
	if look.IsGlance() {
		if links, ok := l.mirror.glance(ctx); ok {
			if links, err := l.mirror.unheard(links, l.conn.Names); err == nil {
				return links, nil
			}
		}
	}
	links, err := l.mirror.list(func() ([]rtnl.Link, error) {
		return l.conn.Veths(func(link rtnl.Link) (bool, error) { return l.own(link), nil })
	})
	if err == nil {
		l.listed.Store(true)
	}
	return links, err
}

// listOnce lists the links unless this agent has done so before: from then on its
// memory has each of them. Who comes meanwhile waits, and has the same list.
func (l *Links) listOnce() error {
	l.mirror.ready(context.Background())
	l.once.Lock()
	defer l.once.Unlock()
	if l.listed.Load() {
		return nil
	}
	_, err := l.list(context.Background(), nil)
	return err
}

package link

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/kinds/shaping"
	"github.com/berth-net/berth/internal/stamp"
	"github.com/berth-net/berth/internal/turn"
)

const (
	// batch is how many links one message deletes. All other changes of links, addresses
	// and routes on the node wait for the message; with 32 links they wait for less than
	// 20 ms.
	batch = 32
	// yield is how many links one message deletes while there are ADDs: each ADD waits for several such
	// messages. A yield of 16 allows a few hundred deletions a second, which is more than there can be
	// ADDs.
	yield = 16
	// flight is how many such messages are under way at once. Most of the time the messages wait
	// outside the kernel's lock.
	flight = 4
)

// Options of New.
type Options struct {
	Conn   *rtnl.Conn   // to the node's network namespace
	Prefix string       // the first 4 characters of the instance's id
	Groups stamp.Groups // the instance's
	// Barrier reports whether the agent's table now drops what enters or leaves by links
	// of the dying groups. While the table does not, Cut also sets links down, which is slower. nil:
	// the table always does.
	Barrier func() bool
	// Exposed is called when Links repairs a link that others had taken out of the live
	// group, or had made a port of another link: the rules have not seen the connections that began on
	// the link meanwhile. Exposed must not block. nil: Links tells nobody.
	Exposed func()
	// Since returns when the last ADD began that the agent answered with an owner's link
	// (CLOCK_BOOTTIME in nanoseconds); 0: the ADD in the link's spec. nil: always 0.
	Since func(hold.ID) int64
	// Going reports whether somebody has asked for an owner's release in a way that the ledger does
	// not know of yet. The host's end of such an owner's new link stays down. If Going cannot tell, it
	// returns why, and the end stays down as well. nil: nobody has.
	Going func(hold.ID) (bool, error)
	// Forwards reports whether the node has to forward what pods send. nil: the node does not have to,
	// or somebody else sees to that.
	Forwards func() bool
	// Unpoliced is called once, with the reason, if a link has a rate for what its pod sends, and the
	// kernel cannot drop what comes in above that rate. It must not block. nil: Links tells nobody.
	Unpoliced func(error)
}

// Links makes, checks, cuts off and deletes the links of an instance.
type Links struct {
	conn      *rtnl.Conn
	prefix    string
	groups    stamp.Groups
	barrier   func() bool
	exposed   func()
	since     func(hold.ID) int64
	going     func(hold.ID) (bool, error)
	forwards  func() bool
	policer   *shaping.Policer
	batches   atomic.Uint32 // counts batches, so that each has a group of its own
	mirror    mirror
	memory    memory
	claims    claims
	lingering lingering
	renames   sync.Mutex  // held by the goroutine that gives links their names back
	turn      turn.One    // of the caller that cuts a link off now
	listed    atomic.Bool // this Links has listed all links at least once
	once      sync.Mutex  // held by listOnce
}

// New returns the links of an instance.
func New(o Options) *Links {
	l := &Links{conn: o.Conn, prefix: o.Prefix, groups: o.Groups, barrier: o.Barrier, exposed: o.Exposed, since: o.Since, going: o.Going, forwards: o.Forwards, policer: shaping.NewPolicer(o.Conn, o.Unpoliced)}
	if l.barrier == nil {
		l.barrier = func() bool { return true }
	}
	if l.exposed == nil {
		l.exposed = func() {}
	}
	if l.since == nil {
		l.since = func(hold.ID) int64 { return 0 }
	}
	if l.going == nil {
		l.going = func(hold.ID) (bool, error) { return false, nil }
	}
	if l.forwards == nil {
		l.forwards = func() bool { return false }
	}
	l.mirror.own = l.heard
	l.batches.Store(rand.Uint32()) // so that batches do not use the same groups as before a restart
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

// spec returns a hold's spec. It refuses a spec whose link name does not contain the
// owner's ID: a link of that name belongs to somebody else. The instance in the name may
// differ from the agent's, because an agent that lost its instance has got a new instance.
func (l *Links) spec(h hold.Hold) (*Spec, error) {
	s, ok := h.Spec.(*Spec)
	if !ok {
		return nil, fmt.Errorf("a hold of kind %s is not a link", h.Spec.Kind())
	}
	want := stamp.Link(l.prefix, h.Owner)
	if n := len(stamp.Links(l.prefix)); len(s.Name) != len(want) || s.Name[0] != want[0] || s.Name[n:] != want[n:] {
		return nil, fmt.Errorf("link %s does not belong to %s, whose link is %s", s.Name, h.Owner, want)
	}
	return s, nil
}

// own reports whether a link is the instance's, and notes its index in the memory.
func (l *Links) own(link rtnl.Link) bool { return l.note(link, l.memory.see) }

// heard is own for a link that the kernel's news name. The news may be late, and tell of a link that
// Links has released since: heard must not put such a link into the memory again.
func (l *Links) heard(link rtnl.Link) bool { return l.note(link, l.memory.move) }

func (l *Links) note(link rtnl.Link, see func(name string, index int)) bool {
	name, ok := l.nameOf(link)
	switch {
	case ok:
		see(name, link.Index)
	case link.Veth && l.groups.Has(link.Group) && stampless(link):
		l.memory.stray(link.MAC, link.Index)
	}
	return ok
}

// gone notes that Links has deleted a link. index is the index that the link had; 0: nobody found the
// link.
func (l *Links) gone(name string, index int) {
	l.memory.gone(name)
	if index != 0 { // after a rename the monitor's filter may have dropped the kernel's news of it
		l.mirror.hear([]rtnl.News{{Change: rtnl.LinkGone, Link: rtnl.Link{Index: index}}})
	}
}

// find returns all links of the instance, under the names that ADD gave them, with what the host's ends
// show. They do not show the netns, nor the pod's interface with its MAC and its addresses.
func (l *Links) find(ctx context.Context, look *hold.Look) ([]hold.Hold, error) {
	links, err := l.list(ctx, look)
	if err != nil && links == nil {
		return nil, fmt.Errorf("looking for links: %w", err)
	}
	if err == nil { // so that verify need not list all links again, which costs the most
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
			alias = "" // an alias that Berth did not give does not show whose the link is
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

// byName returns links by the names that ADD gave them. If two links claim the same name, byName
// returns the link that really has the name.
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

// list returns all links of the instance. With an error of class kernel.ErrInterrupted it
// returns the links that it saw: some may be missing.
func (l *Links) list(ctx context.Context, look *hold.Look) ([]rtnl.Link, error) {
	if look.IsGlance() {
		if links, ok := l.mirror.glance(ctx); ok {
			if links, err := l.mirror.unheard(links, l.conn.Names); err == nil {
				return links, nil
			}
		}
	}
	links, err := l.mirror.list(func() ([]rtnl.Link, error) {
		strays := map[string]int{}
		links, err := l.conn.Veths(func(link rtnl.Link) (bool, error) {
			own := l.own(link)
			if !own && stampless(link) {
				strays[link.MAC] = link.Index
			}
			return own, nil
		})
		if err == nil {
			l.memory.strew(strays) // before the mirror hears again the news that came meanwhile, which may name more strays
		}
		return links, err
	})
	if err == nil {
		l.listed.Store(true)
	}
	return links, err
}

// listOnce lists all links, unless this Links has done so before, and so puts each of them
// into the memory. A caller that comes while another caller lists the links waits for that list.
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

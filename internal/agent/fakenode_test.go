package agent

import (
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/berth-net/berth/internal/kernel/nft"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/kinds/link"
	"github.com/berth-net/berth/internal/kinds/poolroute"
)

// fakeNode is a node in memory: what an agent finds in its kernel, and leaves
// there. It outlives the agents; what they see of it is a fakeKernel each
// (fakekernel_test.go). Its kinds pass kindtest (fakenode_kinds_test.go), which
// is what makes it like the real one.
type fakeNode struct {
	mu    sync.Mutex
	boots int
	began time.Time     // this boot
	step  time.Duration // what the wall clock was set forward by

	stepped bool // in this boot
	self    ns.Ref

	pods   map[string]*fakePod // by path
	links  map[string]*fakeLink
	ways   map[netip.Addr]*fakeLink // host routes, and the neighbours behind them
	flows  map[netip.Addr]string    // connection tracking: the link that the address's traffic took
	pools  map[poolroute.Spec]bool  // unreachable routes
	table  *nft.Ruleset             // nil: there is none
	news   chan struct{}            // of the table, for the one who watches it
	sysctl map[string]string

	pause   func()       // between two system calls of one operation; nil: none comes in
	noticed func()       // who watches the queue is told so
	monitor *fakeMonitor // who listens; nil: nobody

	ids    uint64   // namespaces of this boot, so far
	inodes []uint64 // of namespaces that are gone: the last one is taken again first
	index  int      // interfaces, so far
}

// fakePod is a network namespace. Its path may lead elsewhere by now.
type fakePod struct {
	ref    ns.Ref
	ends   map[string]*fakeLink // by the name in the pod
	closed bool
}

// fakeLink is a veth pair.
type fakeLink struct {
	name, alias, mac string
	group            uint32
	mtu, index       int
	up               bool
	pod              *fakePod
	ifname           string
	end              fakeEnd
}

// fakeEnd is the pod's side of a link.
type fakeEnd struct {
	mac   string
	mtu   int
	up    bool
	addrs []netip.Addr // each with the way out
}

func newFakeNode() *fakeNode {
	w := &fakeNode{}
	w.reboot()
	return w
}

// reboot ends everything that a machine forgets. Namespaces count from the same
// numbers again.
func (w *fakeNode) reboot() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.boots++
	w.stepped = false
	w.began = time.Now()
	w.ids, w.inodes, w.index = 0, nil, 1
	w.pods, w.links = map[string]*fakePod{}, map[string]*fakeLink{}
	w.ways, w.flows = map[netip.Addr]*fakeLink{}, map[netip.Addr]string{}
	w.pools, w.table, w.sysctl = map[poolroute.Spec]bool{}, nil, map[string]string{}
	w.news = make(chan struct{}, 1)
	w.self = w.identity("/proc/thread-self/ns/net")
}

func (w *fakeNode) boot() string { return fmt.Sprintf("boot-%d", w.boots) }

// boottime is CLOCK_BOOTTIME. A boot takes a minute.
func (w *fakeNode) boottime() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return int64(time.Minute + time.Since(w.began))
}

// wall is the wall clock, which anybody may set.
func (w *fakeNode) wall() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return time.Now().Add(w.step)
}

// identity makes one for a new namespace. w.mu is held.
func (w *fakeNode) identity(path string) ns.Ref {
	w.ids++
	ino := 4026531840 + w.ids
	if n := len(w.inodes); n > 0 {
		ino, w.inodes = w.inodes[n-1], w.inodes[:n-1]
	}
	return ns.Ref{Path: path, Dev: 4, Ino: ino, ID: w.ids}
}

// pod makes a network namespace at a path that nothing is at.
func (w *fakeNode) pod(path string) *fakePod {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := &fakePod{ref: w.identity(path), ends: map[string]*fakeLink{}}
	w.pods[path] = p
	return p
}

// end ends a pod: its interfaces go, their other ends with them.
func (w *fakeNode) end(p *fakePod) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p.closed = true
	for _, l := range p.ends {
		w.unlink(l)
	}
	w.inodes = append(w.inodes, p.ref.Ino)
	if w.pods[p.ref.Path] == p {
		delete(w.pods, p.ref.Path)
	}
}

// identify says what is at a namespace's path.
func (w *fakeNode) identify(ref ns.Ref) (ns.Ref, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p, err := w.find(ref)
	if err != nil {
		return ns.Ref{}, err
	}
	return p.ref, nil
}

// occupied reports whether a namespace has an interface of that name.
func (w *fakeNode) occupied(ref ns.Ref, ifname string) (bool, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p, err := w.find(ref)
	return err == nil && p.ends[ifname] != nil, err
}

// find returns the namespace that a reference is to. w.mu is held.
func (w *fakeNode) find(ref ns.Ref) (*fakePod, error) {
	p := w.pods[ref.Path]
	if p == nil || !ref.Same(p.ref) {
		return nil, fmt.Errorf("opening %s: %w", ref.Path, ns.ErrGone)
	}
	return p, nil
}

// ends finds the pods of links, as link.FindEnds does.
func (w *fakeNode) ends(_ ns.Ref, wanted []link.WantedEnd) map[string]link.PodEnd {
	w.mu.Lock()
	defer w.mu.Unlock()
	ends := map[string]link.PodEnd{}
	for _, l := range wanted {
		if on := w.links[l.Name]; on != nil {
			ends[l.Name] = link.PodEnd{Netns: on.pod.ref, MAC: on.end.mac, Addresses: on.end.addrs}
		}
	}
	return ends
}

// unlink deletes a link, with the routes to it. w.mu is held.
func (w *fakeNode) unlink(l *fakeLink) {
	delete(w.links, l.name)
	delete(l.pod.ends, l.ifname)
	w.unroute(l)
	w.tell(rtnl.News{Change: rtnl.LinkGone, Link: l.show()})
}

// unroute deletes the routes to a link, as setting it down does.
func (w *fakeNode) unroute(l *fakeLink) {
	for a, to := range w.ways {
		if to == l {
			delete(w.ways, a)
		}
	}
}

// setDown is `ip link set NAME down`: by the plugin that cuts a pod off itself,
// or by somebody who should not. It reports whether the link is there.
func (w *fakeNode) setDown(name string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	l := w.links[name]
	if l != nil {
		l.up = false
		w.unroute(l)
		w.tell(rtnl.News{Change: rtnl.LinkDown, Link: l.show()})
	}
	return l != nil
}

// reachable reports whether packets get through a link. w.mu is held.
func (w *fakeNode) reachable(l *fakeLink) bool {
	if !l.up || !l.end.up {
		return false
	}
	return w.table == nil || l.group < w.table.CutLow || l.group > w.table.CutHigh
}

// traffic lets every pod that can send do so: its addresses stand in connection
// tracking from now on. An entry that another link has left there takes the
// packets, and is returned.
func (w *fakeNode) traffic() (astray []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for a, l := range w.ways {
		if !w.reachable(l) || !slices.Contains(l.end.addrs, a) {
			continue
		}
		if was, ok := w.flows[a]; ok && was != l.name {
			astray = append(astray, fmt.Sprintf("traffic of %s, which has %s, takes the way of %s", l.name, a, was))
		}
		w.flows[a] = l.name
	}
	return astray
}

// flush deletes all tables, as `nft flush ruleset` does.
func (w *fakeNode) flush() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.table = nil
	select {
	case w.news <- struct{}{}:
	default:
	}
}

// show is a link as rtnetlink shows it.
func (l *fakeLink) show() rtnl.Link {
	return rtnl.Link{Index: l.index, Name: l.name, Alias: l.alias, Group: l.group, MTU: l.mtu, MAC: l.mac, Up: l.up}
}

// Package nodetest has a node in memory, for models of whole programs: Open gives an
// agent the doors of package node to it. Every change that an agent makes there goes
// through a fault.Plan; what other programs, users and pods do to a node are methods of
// Node (others.go, pods.go), and State shows all that there is.
//
// The kinds of a node in memory pass kindtest (kinds_test.go), as the real ones do:
// that makes it like the real node. It works in a bubble of synctest.
package nodetest

import (
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/berth-net/berth/internal/kernel/nft"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/kinds/poolroute"
)

// Node is a node in memory: what an agent finds in its kernel, and leaves there. It
// outlives the agents; each of them has doors of its own to it (doors.go).
type Node struct {
	// Pause lets others come in between two system calls of one operation. It is set
	// before the first agent opens the node; nil: nobody comes in.
	Pause func()

	mu    sync.Mutex
	boots int
	began time.Time     // this boot
	ahead time.Duration // what the wall clock was set forward by

	clockSet bool // in this boot
	self     ns.Ref

	pods   map[string]*Pod // by path
	links  map[string]*Link
	ways   map[netip.Addr]*Link    // host routes, and the neighbours behind them
	flows  map[netip.Addr]string   // connection tracking: the link that the address's traffic took
	pools  map[poolroute.Spec]bool // unreachable routes; false: somebody else's
	table  *nft.Ruleset            // nil: there is none
	news   chan struct{}           // of the table, for the one who watches it
	sysctl map[string]string

	noticed func()   // who watches the queue is told so
	monitor *monitor // who listens; nil: nobody

	ids    uint64   // namespaces of this boot, so far
	inodes []uint64 // of namespaces that are gone: the last one is taken again first
	index  int      // interfaces, so far
}

// Link is a veth pair, by what its end on the node shows.
type Link struct {
	Name, Alias, MAC string
	Group            uint32
	MTU, Index       int
	Up               bool
	Pod              *Pod
	Ifname           string // in the pod
	End              End
}

// End is the pod's side of a link.
type End struct {
	MAC   string
	MTU   int
	Up    bool
	Addrs []netip.Addr // each with the way out
}

// New returns a node that has just booted.
func New() *Node {
	w := &Node{}
	w.Reboot()
	return w
}

// Reboot ends everything that a machine forgets, all pods with it. Namespaces count from
// the same numbers again.
func (w *Node) Reboot() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.boots++
	w.clockSet = false
	w.began = time.Now()
	w.ids, w.inodes, w.index = 0, nil, 1
	w.pods, w.links = map[string]*Pod{}, map[string]*Link{}
	w.ways, w.flows = map[netip.Addr]*Link{}, map[netip.Addr]string{}
	w.pools, w.table, w.sysctl = map[poolroute.Spec]bool{}, nil, map[string]string{}
	w.news = make(chan struct{}, 1)
	w.self = w.identity("/proc/thread-self/ns/net")
}

// Boot is the boot's id.
func (w *Node) Boot() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return fmt.Sprintf("boot-%d", w.boots)
}

// Boottime is CLOCK_BOOTTIME. A boot takes a minute.
func (w *Node) Boottime() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return int64(time.Minute + time.Since(w.began))
}

// Wall is the wall clock, which anybody may set.
func (w *Node) Wall() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return time.Now().Add(w.ahead)
}

// SetClock sets the wall clock forward or, if by is negative, back.
func (w *Node) SetClock(by time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ahead += by
	w.clockSet = true
}

// ClockSet reports whether anybody has set the wall clock in this boot.
func (w *Node) ClockSet() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.clockSet
}

// Move lets the agents that open the node from now on find themselves in another network
// namespace. back lets them find the former one again.
func (w *Node) Move() (back func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	was := w.self
	w.self = ns.Ref{Path: was.Path, Dev: was.Dev, Ino: 1, ID: 1 << 40}
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.self = was
	}
}

// unlink deletes a link, with the routes to it. w.mu is held.
func (w *Node) unlink(l *Link) {
	delete(w.links, l.Name)
	delete(l.Pod.ends, l.Ifname)
	w.unroute(l)
	w.tell(rtnl.News{Change: rtnl.LinkGone, Link: l.show()})
}

// unroute deletes the routes to a link, as setting it down does. w.mu is held.
func (w *Node) unroute(l *Link) {
	for a, to := range w.ways {
		if to == l {
			delete(w.ways, a)
		}
	}
}

// show is a link as rtnetlink shows it.
func (l *Link) show() rtnl.Link {
	return rtnl.Link{Index: l.Index, Name: l.Name, Alias: l.Alias, Group: l.Group, MTU: l.MTU, MAC: l.MAC, Up: l.Up}
}

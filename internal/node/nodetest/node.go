// Package nodetest has a node in memory, for models of whole programs. Open gives an agent
// the doors of package node to that node. Every change that an agent makes there goes
// through a fault.Plan. Methods of Node do what other programs, users and pods do to a node
// (others.go, pods.go), and State shows everything on the node.
//
// The kinds of a node in memory pass kindtest (kinds_test.go), as the real kinds do: that
// makes the node like a real one. It works in a bubble of synctest.
package nodetest

import (
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel/nft"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/kinds/poolroute"
	"github.com/berth-net/berth/internal/kinds/shaping"
	"github.com/berth-net/berth/internal/node/nodetest/ways"
)

// Node is a node in memory: what an agent finds in the kernel, and leaves there. The node
// outlives its agents. Each agent has doors of its own to the node (doors.go).
type Node struct {
	// Pause is called between two system calls of one operation, to let others change
	// the node. It is set before the first agent opens the node. nil: nobody changes
	// anything.
	Pause func()

	mu    sync.Mutex
	boots int
	began time.Time     // when this boot began
	ahead time.Duration // by how much the wall clock was set forward

	clockSet bool // somebody has set the wall clock in this boot
	self     ns.Ref

	pods   map[string]*Pod // by path
	links  map[string]*Link
	ways   map[netip.Addr]*Link      // host routes, and the neighbours behind them
	flows  map[netip.Addr]string     // connection tracking: the name of the link that the address's traffic took
	pools  map[poolroute.Spec]bool   // unreachable routes; false: somebody else's
	nodes  *ways.Ways                // to other nodes
	table  *nft.Ruleset              // nil: there is none
	ports  map[hold.ID][]nft.Mapping // host ports in the table, by their owners
	limits map[string]shaping.Spec   // of links that other plugins have made, by the names of these
	news   chan struct{}             // has a token when somebody has changed the table, for tables.Run
	sysctl map[string]string

	noticed func()   // tells the agent that watches the queue of something new; nil: nobody watches
	monitor *monitor // of the agent that listens; nil: nobody listens

	ids    uint64   // how many namespaces this boot has made so far
	inodes []uint64 // of namespaces that are gone; new namespaces use them again, the last one first
	index  int      // the index of the last interface that was made
}

// Link is a veth pair, as its end on the node shows it.
type Link struct {
	Name, Alias, MAC string
	Group            uint32
	MTU, Index       int
	Up               bool
	Pod              *Pod
	Ifname           string // in the pod
	End              End
	Shape            rtnl.Rate // of what it sends to the pod
	Police           rtnl.Rate // of what it lets in from the pod
}

// End is the pod's side of a link.
type End struct {
	MAC   string
	MTU   int
	Up    bool
	Addrs []netip.Addr // each with a route out of the pod
	Shape rtnl.Rate    // of what it sends
}

// New returns a node that has just booted.
func New() *Node {
	w := &Node{}
	w.Reboot()
	return w
}

// Reboot ends everything that a machine forgets in a reboot, and all pods. The numbers of
// namespaces begin again where they began before.
func (w *Node) Reboot() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.boots++
	w.clockSet = false
	w.began = time.Now()
	w.ids, w.inodes, w.index = 0, nil, 1
	w.pods, w.links = map[string]*Pod{}, map[string]*Link{}
	w.ways, w.flows = map[netip.Addr]*Link{}, map[netip.Addr]string{}
	w.pools, w.nodes = map[poolroute.Spec]bool{}, ways.New()
	w.table, w.ports, w.sysctl = nil, nil, map[string]string{}
	w.limits = map[string]shaping.Spec{}
	w.news = make(chan struct{}, 1)
	w.self = w.identity("/proc/thread-self/ns/net")
}

// Boot returns the boot's id.
func (w *Node) Boot() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return fmt.Sprintf("boot-%d", w.boots)
}

// Boottime returns CLOCK_BOOTTIME, ns. It is a minute right after a boot.
func (w *Node) Boottime() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return int64(time.Minute + time.Since(w.began))
}

// Wall returns the wall clock's time (SetClock).
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

// Move lets the agents that open the node from now on run in another network namespace.
// back lets agents that open the node later run in the former namespace again.
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

// unlink deletes a link and the routes to it. The caller holds w.mu.
func (w *Node) unlink(l *Link) {
	delete(w.links, l.Name)
	delete(l.Pod.ends, l.Ifname)
	w.unroute(l)
	w.tell(rtnl.News{Change: rtnl.LinkGone, Link: l.show()})
}

// unroute deletes the routes to a link, as the kernel does when a link goes down. The
// caller holds w.mu.
func (w *Node) unroute(l *Link) {
	for a, to := range w.ways {
		if to == l {
			delete(w.ways, a)
		}
	}
}

// show returns a link as rtnetlink shows it.
func (l *Link) show() rtnl.Link {
	return rtnl.Link{Index: l.Index, Name: l.Name, Alias: l.Alias, Group: l.Group, MTU: l.MTU, MAC: l.MAC, Up: l.Up}
}

package node

import (
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/deletions"
	"github.com/berth-net/berth/internal/nettest"
)

// stopAtCut has del delete pods, and stops the agent (SIGSTOP) when the kernel has told that the
// last of the pods is cut off. del may get no answer then. If del succeeds, all pods have to be cut
// off or gone.
func (a *agent) stopAtCut(got []attached, del func() error) {
	a.t.Helper()
	live := nettest.Link(a.t, got[0].host).Attrs().Group
	cuts := newCuts(a.t, got)
	answered := make(chan error, 1)
	go func() { answered <- del() }()
	timeout := time.NewTimer(nettest.Deadline)
	defer timeout.Stop()
	for len(cuts.left) > 0 {
		select {
		case u := <-cuts.links:
			cuts.link(u)
		case u := <-cuts.routes:
			cuts.route(u)
		case err := <-answered:
			if err != nil {
				a.t.Fatalf("deleting pods: %v", err)
			}
			for _, g := range got {
				if link, err := netlink.LinkByName(g.host); err == nil && link.Attrs().Group == live && link.Attrs().Flags&net.FlagUp != 0 {
					a.t.Errorf("%s is deleted, and its link %s is not cut off", g.addrs, g.host)
				}
			}
			answered = nil
		case <-timeout.C:
			a.t.Fatalf("waited %s in vain for links to be cut off: %v", nettest.Deadline, cuts.left)
		}
	}
	a.freeze()
}

// cuts are the news of the kernel by which pods are cut off: either the route to a pod ends,
// after the pod's link has joined the cut group (of which the kernel tells nothing), or the
// pod's link is set down.
type cuts struct {
	links  chan netlink.LinkUpdate
	routes chan netlink.RouteUpdate
	left   map[string]bool   // host links that are not cut off
	ways   map[string]string // host links by the last address of each link's pod
}

func newCuts(t *testing.T, got []attached) *cuts {
	t.Helper()
	c := &cuts{
		links: make(chan netlink.LinkUpdate, 4096), routes: make(chan netlink.RouteUpdate, 4096),
		left: map[string]bool{}, ways: map[string]string{},
	}
	done := make(chan struct{})
	t.Cleanup(func() { close(done) })
	must(t, netlink.LinkSubscribe(c.links, done))
	must(t, netlink.RouteSubscribe(c.routes, done))
	for _, g := range got {
		c.left[g.host] = true
		c.ways[g.addrs[len(g.addrs)-1].String()] = g.host
	}
	return c
}

func (c *cuts) link(u netlink.LinkUpdate) {
	if u.Header.Type == unix.RTM_DELLINK || u.Attrs().Flags&net.FlagUp == 0 {
		delete(c.left, u.Attrs().Name)
	}
}

func (c *cuts) route(u netlink.RouteUpdate) {
	if u.Type == unix.RTM_DELROUTE && u.Dst != nil {
		delete(c.left, c.ways[u.Dst.IP.String()])
	}
}

// A runtime executes the plugin in a network namespace of its own, and no agent is there:
// the plugin cannot see the pod's link, and DEL does not succeed before somebody has cut
// the pod off.
func TestDelFromAnotherNamespace(t *testing.T) {
	a := startAgent(t, "--pool=default=10.88.0.0/24")
	pods, got := a.podsOf(2)
	a.kill()
	elsewhere := nettest.Node(t)
	del := func(pod string) error {
		c := a.command("DEL", "c0", pod, `"prevResult":{"interfaces":[{"name":"`+got[0].host+`"}]}`)
		from := nettest.Command(elsewhere, c.Path)
		from.Env, from.Stdin = c.Env, c.Stdin
		return from.Run()
	}
	if err := del(pods[0].Ref().Path); err == nil {
		t.Error("DEL succeeds, and has cut nobody off")
	}
	a.wantQueued("c0", false)
	nettest.Ping(t, pods[1], got[0].addrs[0])
	if err := a.tryDel("c1", pods[1].Ref().Path); err != nil { // in the agent's namespace
		t.Error(err)
	}
	// From elsewhere a DEL succeeds if the pod's namespace is gone, as when somebody has moved the node.
	if err := del("/run/netns/none"); err != nil {
		t.Error(err)
	}
	a.start()
	a.wantGone()
}

// A DEL without an agent has the result of another pod, or of an earlier ADD: the pod is
// not cut off, and the queue says so.
func TestQueuedSaysWhoIsCutOff(t *testing.T) {
	a := startAgent(t, "--pool=default=10.88.0.0/24")
	pods, got := a.podsOf(3)
	other := "x" // at the end of the name of c2's link, which then is nobody's link
	if strings.HasSuffix(got[2].host, other) {
		other = "y"
	}
	a.kill()
	for container, of := range map[string]struct {
		link string
		cut  bool
	}{"c0": {got[1].host, false}, "c1": {got[1].host, true}, "c2": {got[2].host[:14] + other, false}} {
		a.del(container, `"prevResult":{"interfaces":[{"name":"`+of.link+`"}]}`)
		a.wantQueued(container, of.cut)
	}
	nettest.Ping(t, pods[0], got[2].addrs[0])
	a.start()
	a.wantGone()
}

// wantQueued wants a deletion of a container in the queue, which says whether the pod is
// cut off.
func (a *agent) wantQueued(container string, cut bool) {
	a.t.Helper()
	s, err := deletions.Look(a.root)
	must(a.t, err)
	i := slices.IndexFunc(s.Pending, func(e deletions.Entry) bool { return e.Record.Container == container })
	if i < 0 || s.Pending[i].Record.Cut != cut {
		a.t.Errorf("the deletion of %s, which is cut off: %v, is not among %+v", container, cut, s.Pending)
	}
}

package hostile

import (
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/test/programs"
)

// Pods go on sending while they are deleted. When DEL is answered, no packet of the deleted pod
// reaches another pod. If somebody flushes nftables again and again meanwhile, that holds from
// the moment on when the pod's link is down or gone, which comes right after DEL (t16c.sh,
// t16.sh).
func TestNothingIsHeardAfterDel(t *testing.T) {
	for _, c := range []struct {
		name  string
		flush bool
	}{{"in peace", false}, {"while nftables is flushed", true}} {
		t.Run(c.name, func(t *testing.T) {
			n := newNode(t, plain)
			v, live, dying := n.add("v"), n.add("live"), n.adds("p", 20)
			e, lives := v.ear(t), live.flood(t, live.ip4, v.ip4)
			var floods []*flood
			for _, p := range dying {
				floods = append(floods, p.flood(t, p.ip4, v.ip4))
			}
			for _, f := range append(floods, lives) {
				nettest.Eventually(t, "all to be heard", func() bool { return e.heard(f.src) > 0 })
			}
			if c.flush {
				flushAgain(t)
			}
			marks := make([]uint64, len(dying))
			var dels sync.WaitGroup
			for i, p := range dying {
				dels.Go(func() {
					if err := n.tryDel(p); err != nil {
						t.Error(err)
					}
					for c.flush && isUp(t, p.host) {
						time.Sleep(time.Millisecond)
					}
					marks[i] = floods[i].begun.Load() + 1 // one packet may be on its way
				})
			}
			dels.Wait()
			e.silent(t, lives, floods, marks)
		})
	}
}

// flushAgain is `nft flush ruleset` every few milliseconds until the test ends.
func flushAgain(t *testing.T) {
	tick := time.NewTicker(4 * time.Millisecond)
	nettest.Meanwhile(t, func() {
		<-tick.C
		nft(t, "flush ruleset")
	})
}

// Many pods are deleted at once, so that their links wait for their turn to be
// deleted; the agent is killed, and then somebody flushes nftables. Links that wait go
// down: nothing comes from their pods and nothing reaches them, with no table and no
// agent (t3.sh).
func TestCutNeedsNoTable(t *testing.T) {
	n := newNode(t, "cooldown: 1ms\n"+plain)
	v := n.add("v")
	var down []*pod
	for try := 0; len(down) == 0 && try < 5; try++ { // perhaps no link had to wait
		dying := n.adds("p", 96)
		stop := n.churn() // so that links wait
		down = n.freezeAtDown(dying)
		n.Crash()
		stop()
		nft(t, "flush ruleset")
		for _, p := range down[:min(len(down), 3)] { // the others are like these
			for _, to := range []netip.Addr{v.ip4, v.ip6, node4, node6} {
				nettest.NoPing(t, p.at, to)
			}
			for _, to := range []netip.Addr{p.ip4, p.ip6} {
				nettest.NoPing(t, v.at, to)
				nettest.NoPing(t, nil, to)
			}
		}
		n.Again()
		n.deleteAll("p")
		nettest.Eventually(t, "the deleted pods to be gone", func() bool { return len(programs.List(n.t, n.API)) == 1 })
	}
	if len(down) == 0 {
		t.Error("the links of deleted pods that wait for their turn are not down: all that cuts them off is a table")
	}
	n.wantGone()
}

// freezeAtDown has pods deleted, and freezes the agent as soon as links of some pods are
// down, but not gone. freezeAtDown returns these pods; none if all links were gone at once.
func (n *node) freezeAtDown(pods []*pod) []*pod {
	n.t.Helper()
	updates, done := make(chan netlink.LinkUpdate, 4096), make(chan struct{})
	defer close(done)
	lost := make(chan error, 1)
	must(n.t, netlink.LinkSubscribeWithOptions(updates, done, netlink.LinkSubscribeOptions{
		ReceiveBufferSize:      16 << 20,
		ReceiveBufferForceSize: programs.InitialUser(), // others get no more than net.core.rmem_max: socket(7)
		ErrorCallback: func(err error) {
			select {
			case lost <- err:
			default: // the first error is the reason
			}
		},
	}))
	left := map[string]bool{}
	for _, p := range pods {
		left[p.host] = true
	}
	go n.deleteAll("p")
	late := time.After(nettest.Deadline)
	for len(left) > 0 {
		select {
		case u, ok := <-updates:
			if !ok {
				n.t.Fatalf("the kernel's news of links have ended: %v", <-lost)
			}
			if u.Header.Type == unix.RTM_DELLINK {
				delete(left, u.Attrs().Name)
				continue
			}
			if u.Attrs().Flags&net.FlagUp != 0 || !left[u.Attrs().Name] {
				continue
			}
			must(n.t, n.Freeze()) // a link that is being deleted is gone by then
			if down := n.down(pods); len(down) > 0 {
				return down
			}
			signal(unix.SIGCONT)(n)
		case <-late:
			n.t.Fatalf("%d links of deleted pods are neither down nor gone", len(left))
		}
	}
	return nil
}

// deleteAll deletes the containers whose names begin with a letter, unless the agent is
// killed before.
func (n *node) deleteAll(letter string) {
	all, _ := n.API.List(n.t.Context(), api.Filter{})
	all = slices.DeleteFunc(all, func(at api.Attachment) bool { return !strings.HasPrefix(at.ContainerID, letter) })
	var dels sync.WaitGroup
	for some := range slices.Chunk(all, 1+len(all)/8) {
		dels.Go(func() {
			for _, at := range some {
				_, _ = n.API.DeleteOne(n.t.Context(), at.ID, false)
			}
		})
	}
	dels.Wait()
}

// churn attaches and detaches a pod again and again, until somebody calls stop. Releases let these
// verbs go first.
func (n *node) churn() (stop func()) {
	netns := nettest.Pod(n.t).Ref().Path
	return nettest.Again(func() {
		_, _ = n.Exec("ADD", "churn", netns) // it fails if the agent is frozen
		_, _ = n.Exec("DEL", "churn", netns)
	})
}

// down returns those of the pods whose links are there, and down.
func (n *node) down(pods []*pod) []*pod {
	var down []*pod
	for _, p := range pods {
		if l := linkOf(n.t, p.host); l != nil && l.Flags&net.FlagUp == 0 {
			down = append(down, p)
		}
	}
	return down
}

// Somebody flushes nftables, adds a rule before ours that accepts everything, takes
// our rules away, or lays our table to sleep. The agent restores it, and from then
// on a pod that speaks in another's name is not heard (t6.sh).
func TestTableIsRestored(t *testing.T) {
	n := newNode(t, plain)
	a, v := n.add("a"), n.add("v")
	e, lives := v.ear(t), a.flood(t, a.ip4, v.ip4)
	lies := a.flood(t, netip.MustParseAddr("192.0.2.77"), v.ip4)
	st, err := n.API.Status(t.Context(), "")
	must(t, err)
	table := "inet berth-" + st.Instance
	rules := func() string { // without the elements that say whose connections are counted, which chance decides
		lines := strings.SplitAfter(nettest.Snapshot(t, nil).Only("nft").String(), "\n")
		return strings.Join(slices.DeleteFunc(lines, func(l string) bool { return strings.Contains(l, " set counted element ") }), "")
	}
	whole := rules()
	for _, damage := range []string{
		"flush ruleset", "flush ruleset", "flush ruleset",
		"insert rule TABLE cut_in accept",
		"flush chain TABLE cut_in",
		"add table TABLE { flags dormant; }",
		"delete table TABLE",
	} {
		nft(t, strings.ReplaceAll(damage, "TABLE", table))
		nettest.Eventually(t, "the table to be whole after "+damage, func() bool {
			return rules() == whole
		})
		e.silent(t, lives, []*flood{lies}, []uint64{lies.begun.Load() + 1})
	}
	n.wantGone()
}

package strangers

import (
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/deletions"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/root"
)

// nodeAddrs are the addresses that the function address gives the node.
var nodeAddrs = []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")}

// connected checks that node and pod reach each other.
func connected(t *testing.T, pod *ns.Netns, addrs []netip.Addr) {
	t.Helper()
	for _, a := range addrs {
		nettest.Ping(t, nil, a)
	}
	for _, a := range nodeAddrs {
		nettest.Ping(t, pod, a)
	}
}

// cutOff checks that node and pod do not reach each other.
func cutOff(t *testing.T, pod *ns.Netns, addrs []netip.Addr) {
	t.Helper()
	for _, a := range addrs {
		nettest.NoPing(t, nil, a)
	}
	for _, a := range nodeAddrs {
		nettest.NoPing(t, pod, a)
	}
}

// neverUp watches a link that is down. The function that it returns waits until the link is
// gone, and fails the test if the link was set up meanwhile.
func neverUp(t *testing.T, name string) (gone func()) {
	t.Helper()
	link, err := netlink.LinkByName(name)
	if err != nil || link.Attrs().Flags&net.FlagUp != 0 {
		t.Fatalf("link %s is not down: %v, %v", name, link, err)
	}
	updates, done := make(chan netlink.LinkUpdate, 1024), make(chan struct{})
	must(t, netlink.LinkSubscribe(updates, done)) // ip monitor link
	t.Cleanup(func() { close(done) })
	return func() {
		t.Helper()
		for {
			select {
			case u := <-updates:
				if int(u.Index) != link.Attrs().Index {
					continue
				}
				if u.Header.Type == unix.RTM_DELLINK {
					return
				}
				if u.Flags&unix.IFF_UP != 0 {
					t.Errorf("link %s was set up", name)
				}
			case <-time.After(nettest.Deadline):
				t.Fatalf("link %s is still there", name)
			}
		}
	}
}

// queued returns the deletions that wait for the agent.
func (n *node) queued(t *testing.T) []deletions.Entry {
	t.Helper()
	q, err := deletions.Open(root.Dir(n.agent.Root))
	must(t, err)
	defer q.Close()
	entries, err := q.Pending()
	must(t, err)
	return entries
}

// The agent is killed, or stopped, and pods are deleted: each pod is cut off when
// DEL answers, libcni forgets the pod, and the agent's next start leaves nothing of
// the pod (cilium #22067, #40931: pods stuck or leaked while the agent is away).
func TestLibcniDelWithoutAgent(t *testing.T) {
	n := newNode(t)
	for name, end := range map[string]func() error{"killed": n.agent.Kill, "stopped": n.agent.Stop} {
		t.Run(name, func(t *testing.T) {
			pod, other := nettest.Pod(t), nettest.Pod(t)
			n.empty = nettest.Snapshot(t, nil)
			r, rt, kept := newRuntime(t, n, "1.1.0", ""), of("away-"+name, pod), of("kept-"+name, other)
			addrs, keptAddrs := addrsOf(r.add(t, rt)), addrsOf(r.add(t, kept))
			connected(t, pod, addrs)
			must(t, end())

			r.del(t, rt)
			cutOff(t, pod, addrs)
			connected(t, other, keptAddrs)
			if conf, _, err := r.cni.GetNetworkListCachedConfig(r.list, rt); err != nil || conf != nil {
				t.Errorf("libcni still has %s, %v", conf, err)
			}
			r.del(t, rt) // again, without a result by now
			if got := n.queued(t); len(got) != 2 || !got[0].Record.Cut || got[1].Record.Link != "" {
				t.Errorf("queued are %+v", got)
			}

			gone := neverUp(t, n.queued(t)[0].Record.Link)
			must(t, n.agent.Start(t.Context()))
			nettest.Eventually(t, "the agent has done what is queued", func() bool { return len(n.queued(t)) == 0 })
			gone()
			cutOff(t, pod, addrs)
			connected(t, other, keptAddrs)
			r.del(t, kept)
			n.agent.NothingLeft(t, n.empty)
		})
	}
}

// The agent hangs until DEL has given the agent up, and then goes on: the agent
// sees a link that went down, and a request whose asker is gone, and has to find
// that the pod is deleted (multus #1372, #822: DEL hung as long as somebody else
// did). The test takes the 12 s that the plugin waits.
func TestLibcniDelHungAgent(t *testing.T) {
	n := newNode(t)
	pod := nettest.Pod(t)
	n.empty = nettest.Snapshot(t, nil)
	r, rt := newRuntime(t, n, "1.1.0", ""), of("hung", pod)
	addrs := addrsOf(r.add(t, rt))
	must(t, n.agent.Freeze())
	defer n.agent.Signal(unix.SIGCONT)
	r.del(t, rt)
	cutOff(t, pod, addrs)
	queued := n.queued(t)
	if len(queued) != 1 || !strings.Contains(queued[0].Record.Reason, "the deadline passed") {
		t.Fatalf("queued are %+v", queued)
	}
	gone := neverUp(t, queued[0].Record.Link)
	must(t, n.agent.Signal(unix.SIGCONT))
	gone()
	nettest.Eventually(t, "the agent has done what is queued", func() bool { return len(n.queued(t)) == 0 })
	n.agent.NothingLeft(t, n.empty)
}

// The agent is gone while cnitool deletes a pod, and the pod's network namespace is gone before the
// agent is back.
func TestCnitoolDelWithoutAgent(t *testing.T) {
	n := newNode(t)
	pod := nettest.Pod(t)
	n.empty = nettest.Snapshot(t, nil)
	tool, netns := newCnitool(t, n, "1.1.0"), pod.Ref().Path
	tool.must(t, "add", netns)
	must(t, n.agent.Kill())
	tool.must(t, "del", netns)
	for _, a := range nodeAddrs {
		nettest.NoPing(t, pod, a)
	}
	if left, err := filepath.Glob(filepath.Join(tool.lib, "cni", "results", "*")); err != nil || len(left) > 0 {
		t.Errorf("libcni still has %v, %v", left, err)
	}
	must(t, n.agent.Start(t.Context()))
	n.agent.NothingLeft(t, n.empty)
}

// A runtime that has lost its cache, such as by a reboot (cni #1055), or sends no
// result because the configuration is older than 0.4.0, cannot say which link was
// the pod's: the plugin finds the link by the pod's interface. Without a network
// namespace the agent cuts the pod off, before it serves.
func TestLibcniDelWithoutAgentAndCache(t *testing.T) {
	n := newNode(t)
	for name, test := range map[string]struct {
		version     string
		lost, named bool // the cache; the network namespace, at DEL
	}{
		"lost":              {"1.1.0", true, true},
		"never sent":        {"0.3.1", false, true},
		"namespace unknown": {"1.1.0", true, false},
	} {
		t.Run(name, func(t *testing.T) {
			pod := nettest.Pod(t)
			n.empty = nettest.Snapshot(t, nil)
			cache := t.TempDir()
			r, rt := newRuntime(t, n, test.version, ""), of("no-cache", pod)
			r.cni = libcni.NewCNIConfigWithCacheDir([]string{n.bin}, cache, nil)
			addrs := addrsOf(r.add(t, rt))
			must(t, n.agent.Kill())
			if test.lost {
				must(t, os.RemoveAll(filepath.Join(cache, "results")))
			}
			if !test.named {
				rt.NetNS = ""
			}
			r.del(t, rt)
			if got := n.queued(t); len(got) != 1 || got[0].Record.Cut != test.named || got[0].Record.Link != "" {
				t.Errorf("queued are %+v", got)
			}
			if test.named {
				cutOff(t, pod, addrs)
			}
			must(t, n.agent.Start(t.Context()))
			cutOff(t, pod, addrs)
			n.agent.NothingLeft(t, n.empty)
		})
	}
}

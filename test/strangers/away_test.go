package strangers

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"

	"github.com/berth-net/berth/internal/deletions"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/root"
)

// nodeAddrs are what address gives the node.
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

// cutOff checks that neither reaches the other.
func cutOff(t *testing.T, pod *ns.Netns, addrs []netip.Addr) {
	t.Helper()
	for _, a := range addrs {
		nettest.NoPing(t, nil, a)
	}
	for _, a := range nodeAddrs {
		nettest.NoPing(t, pod, a)
	}
}

// queued returns the deletions that wait for the agent.
func (n *node) queued(t *testing.T) []deletions.Entry {
	t.Helper()
	q, err := deletions.Open(root.Dir(n.agent.Root))
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	entries, err := q.Pending()
	if err != nil {
		t.Fatal(err)
	}
	return entries
}

// The agent is killed, or stopped, and pods are deleted: each is cut off when
// DEL answers, libcni forgets it, and the agent's next start leaves nothing of
// it (cilium #22067, #40931: pods stuck or leaked while the agent is away).
func TestLibcniDelWithoutAgent(t *testing.T) {
	n := newNode(t)
	for name, end := range map[string]func() error{"killed": n.agent.Kill, "stopped": n.agent.Stop} {
		t.Run(name, func(t *testing.T) {
			pod, other := nettest.Pod(t), nettest.Pod(t)
			n.empty = nettest.Snapshot(t, nil)
			r, rt, kept := newRuntime(t, n, "1.1.0", ""), of("away-"+name, pod), of("kept-"+name, other)
			addrs, keptAddrs := addrsOf(r.add(t, rt)), addrsOf(r.add(t, kept))
			connected(t, pod, addrs)
			if err := end(); err != nil {
				t.Fatal(err)
			}

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

			if err := n.agent.Start(t.Context()); err != nil {
				t.Fatal(err)
			}
			nettest.Eventually(t, "the agent has done what is queued", func() bool { return len(n.queued(t)) == 0 })
			cutOff(t, pod, addrs)
			connected(t, other, keptAddrs)
			r.del(t, kept)
			n.agent.NothingLeft(t, n.empty)
		})
	}
}

// The same by cnitool, for a pod whose network namespace goes first.
func TestCnitoolDelWithoutAgent(t *testing.T) {
	n := newNode(t)
	pod := nettest.Pod(t)
	n.empty = nettest.Snapshot(t, nil)
	tool, netns := newCnitool(t, n, "1.1.0"), pod.Ref().Path
	tool.must(t, "add", netns)
	if err := n.agent.Kill(); err != nil {
		t.Fatal(err)
	}
	if out, err := tool.run("status", netns); err == nil || !strings.Contains(out, "berthd") {
		t.Errorf("STATUS with no agent: %v\n%s", err, out)
	}
	tool.must(t, "del", netns)
	for _, a := range nodeAddrs {
		nettest.NoPing(t, pod, a)
	}
	if left, err := filepath.Glob(filepath.Join(tool.lib, "cni", "results", "*")); err != nil || len(left) > 0 {
		t.Errorf("libcni still has %v, %v", left, err)
	}
	if err := n.agent.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	n.agent.NothingLeft(t, n.empty)
}

// A runtime that has lost its cache, such as by a reboot (cni #1055), cannot say
// which link it was: then the agent cuts the pod off before it serves.
func TestLibcniDelWithoutAgentAndCache(t *testing.T) {
	n := newNode(t)
	pod := nettest.Pod(t)
	n.empty = nettest.Snapshot(t, nil)
	cache := t.TempDir()
	r, rt := newRuntime(t, n, "1.1.0", ""), of("no-cache", pod)
	r.cni = libcni.NewCNIConfigWithCacheDir([]string{n.bin}, cache, nil)
	addrs := addrsOf(r.add(t, rt))
	if err := n.agent.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(cache, "results")); err != nil {
		t.Fatal(err)
	}
	r.del(t, rt)
	if got := n.queued(t); len(got) != 1 || got[0].Record.Cut {
		t.Errorf("queued are %+v", got)
	}
	if err := n.agent.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	cutOff(t, pod, addrs)
	n.agent.NothingLeft(t, n.empty)
}

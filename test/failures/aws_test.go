package failures

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/test/programs"
)

// aws #1374, #1375, #1313: a late or forced DEL looked the pod up by its name, and took away
// what the pod's successor of the same name had. Here the DEL has to leave the successor alone,
// and to succeed.
func TestLateDelSparesThePodOfTheSameName(t *testing.T) {
	n := newNode(t, plain)
	const args = "K8S_POD_NAMESPACE=default;K8S_POD_NAME=web-0"
	add := func(container string) (*ns.Netns, attached) {
		pod := nettest.Pod(t)
		got, err := parse(n.exec(call{verb: "ADD", container: container, netns: pod.Ref().Path, args: args}))
		must(t, err)
		return pod, got
	}
	_, old := add("old")
	n.del("old", wait)
	pod, heir := add("heir")
	whole := look(t)
	for _, keys := range [][]string{{wait}, {wait, old.prevResult()}} {
		for _, netns := range []string{"", pod.Ref().Path} { // the path may be the successor's by now
			if _, err := n.exec(call{verb: "DEL", container: "old", netns: netns, args: args, keys: keys}); err != nil {
				t.Errorf("late DEL: %v", err)
			}
		}
	}
	nettest.Same(t, whole, look(t), "a late DEL changed")
	nettest.Ping(t, nil, heir.Addr)
	n.Audit(n.t)
}

// aws #2896: addresses in cooldown counted as available, so that ADD failed while the pool
// looked full of them. aws, from source: the cooldown was not written down. Here a resting
// address does not count as free: not in messages, in figures or for STATUS, and not after a
// SIGKILL.
func TestRestingAddressIsNotFree(t *testing.T) {
	n := newNode(t, "cooldown: 1h\nfullNotReady: true\npools:\n- {name: default, cidrs: [10.88.0.0/30]}\n") // 2 addresses
	old := n.add("old", nettest.Pod(t))
	n.del("old", wait)
	n.restart()
	if p := n.pool(); p.Size != "2" || p.Used != 0 || p.Resting != 1 {
		t.Errorf("the pool's figures: %+v, want 2 in all, 1 of them resting", p)
	}
	if got := n.add("new", nettest.Pod(t)); got.Addr == old.Addr {
		t.Errorf("%s was given again", old.Addr)
	}
	_, err := n.tryAdd("more", nettest.Pod(t))
	programs.WantError(t, err, 100, "1 in use, 1 in cooldown")
	_, err = n.exec(call{verb: "STATUS"})
	programs.WantError(t, err, 50, "cooldown")
}

// aws #3634: the cooldown was shorter than connection tracking remembers, so
// that an old flow reached the address's next pod. Here a pod's flows are
// forgotten with the pod, and the flows of other pods are not.
func TestFlowsEndWithTheirPod(t *testing.T) {
	n := newNode(t, plain)
	tracked := func() string { return nettest.Snapshot(t, nil).Only("conntrack").String() }
	var got []attached
	for _, c := range []string{"gone", "stays"} {
		pod := nettest.Pod(t)
		a := n.add(c, pod)
		at := nettest.Serve(t, pod, "udp", a.String()+":53")
		if _, err := nettest.Talk(nil, "udp", at, 10*time.Second); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(tracked(), a.String()+" ") {
			t.Fatalf("no flow of %s is tracked:\n%s", a, tracked())
		}
		got = append(got, a)
	}
	n.del("gone", wait)
	if left := tracked(); strings.Contains(left, got[0].String()+" ") || !strings.Contains(left, got[1].String()+" ") {
		t.Errorf("%s is gone and %s is not; tracked are:\n%s", got[0], got[1], left)
	}
}

// aws #1600, #3309: systemd-networkd removes rules and routes that it does not
// know; only a restart of the agent put them back. Here the agent puts them
// back without a restart.
func TestForeignRemovalIsMended(t *testing.T) {
	n := newNode(t, brisk)
	pod := nettest.Pod(t)
	got := n.add("c", pod)
	nettest.Ping(t, nil, got.Addr)
	programs.Settled(t, nil, got.host)
	whole := look(t).Only("route", "rule", "nft", "link")
	nettest.Run(t, nil, fmt.Sprintf("ip route del %s dev %s", got, got.host))
	nettest.Run(t, nil, "ip route del unreachable 10.88.0.0/24")
	c, err := nftables.New()
	must(t, err)
	c.FlushRuleset() // nft flush ruleset
	must(t, c.Flush())
	nettest.Eventually(t, "everything to be back", func() bool {
		return whole.Diff(look(t).Only("route", "rule", "nft", "link")) == ""
	})
	nettest.Ping(t, nil, got.Addr)
	n.Audit(n.t)
}

// aws #2948, #3684: one iptables process a rule, all waiting for one lock: the start outlived
// the liveness probe. Here somebody holds that lock for good, and no pod notices.
func TestXtablesLockIsNobodysConcern(t *testing.T) {
	nettest.Need(t)
	lock, err := os.Create("/run/xtables.lock") // of the test's own /run
	must(t, err)
	defer lock.Close()
	must(t, unix.Flock(int(lock.Fd()), unix.LOCK_EX))
	n := newNode(t, plain)
	n.add("c", nettest.Pod(t))
	n.restart()
	n.del("c", wait)
	n.wantNothing()
}

// aws PR #3764: ADDs took seconds in a burst of 30 pods, since each interface
// was made on the node and then moved into its pod, for which the kernel waits
// long. Here the node never sees the pods' ends.
func TestPodsEndIsBornInThePod(t *testing.T) {
	n := newNode(t, plain)
	updates, done := make(chan netlink.LinkUpdate, 4096), make(chan struct{})
	must(t, netlink.LinkSubscribe(updates, done))
	defer close(done)
	hosts := map[string]bool{}
	for _, got := range n.burst(30) {
		hosts[got.host] = true
	}
	nettest.Run(t, nil, "ip link set lo mtu 65000") // once the kernel has told this change, it has told all changes before
	defer nettest.Run(t, nil, "ip link set lo mtu 65536")
	for u := range updates {
		name := u.Attrs().Name
		if name == "lo" {
			break
		}
		if u.Header.Type == unix.RTM_DELLINK || !hosts[name] {
			t.Fatalf("the node has seen %s come or go, which is no host veth of a pod", name)
		}
	}
}

// burst attaches pods, whose plugins all ask the agent at once. The agent may turn no plugin away.
func (n *node) burst(pods int) []attached {
	n.t.Helper()
	runs, got := make([]*run, pods), make([]attached, pods)
	thaw := n.freeze()
	for i := range runs {
		got[i].pod = nettest.Pod(n.t)
		runs[i] = n.begin(call{verb: "ADD", container: fmt.Sprint("burst", i), netns: got[i].pod.Ref().Path})
		runs[i].asks()
	}
	thaw()
	for i, r := range runs {
		a, err := parse(r.end())
		if err != nil {
			n.t.Fatalf("ADD of %s: %v", r.container, err)
		}
		a.pod = got[i].pod
		got[i] = a
	}
	return got
}

package macvlan_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel/nlsock"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/nettest"
)

// CHECK names each difference in the pod. Verify sees those by which the macvlan is the owner's and on the network,
// and Acquire mends these and nothing else.
func TestVerifyPod(t *testing.T) {
	f := newFixture(t)
	for i, c := range []struct {
		line, want string
		mended     bool
	}{
		{"ip link set net1 name other", "renamed to other", true},
		{"ip link set net1 group 7", "group 7, not", true},
		{"ip link set net1 alias mine", `alias "mine"`, true},
		{"ip link set net1 type macvlan mode vepa", "mode vepa, not bridge", true},
		{"ip link set net1 address 02:00:00:00:00:99", "mac 02:00:00:00:00:99", false},
		{"ip link set net1 mtu 1300", "mtu 1300, not 1400", false},
		{"ip link set net1 down", "down", false},
		{"ip addr flush dev net1 to 192.0.2.0/24", "no address 192.0.2.", false},
		{"ip addr flush dev net1 to 2001:db8::/64", "no address 2001:db8::", false},
		{"ip route del 203.0.113.0/24", "no route 203.0.113.0/24", false},
		{"ip route del 192.0.2.0/24", "no route 192.0.2.0/24", false},
		{"ip -6 route del 2001:db8:1::/64", "no route 2001:db8:1::/64", false},
		{"sysctl -qw net.ipv6.conf.net1.accept_ra=1", "accept_ra 1, not 0", false},
	} {
		pod, h := f.taken(1 + i)
		must(t, f.verify(h), f.all.VerifyPod(t.Context(), h))
		if name, ok := strings.CutPrefix(c.line, "sysctl -qw net."); ok {
			key, value, _ := strings.Cut(name, "=")
			nettest.Sysctl(t, pod, strings.ReplaceAll(key, ".", "/"), value)
		} else {
			nettest.Run(t, pod, c.line)
		}
		var changed *hold.ChangedError
		if err := f.all.VerifyPod(t.Context(), h); !errors.As(err, &changed) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: CHECK says %v", c.line, err)
		}
		if err := f.verify(h); errors.Is(err, hold.ErrChanged) != c.mended {
			t.Errorf("%s: Verify says %v", c.line, err)
		}
		before := nettest.Snapshot(t, pod)
		must(t, f.kind.Acquire(t.Context(), h), f.verify(h))
		if !c.mended {
			nettest.Same(t, before, nettest.Snapshot(t, pod), c.line+", and Acquire: the pod")
		} else {
			must(t, f.all.VerifyPod(t.Context(), h))
		}
		f.release(h)
		if there, err := pod.HasLink("net1"); err != nil || there {
			t.Errorf("%s: after the release it is there: %t, %v", c.line, there, err)
		}
	}
}

// A pod cannot pass off a macvlan on a link of its own, which has the parent's index, as the owner's.
func TestForged(t *testing.T) {
	f := newFixture(t)
	pod, h := f.taken(1)
	was := f.show(h)
	nettest.Run(t, pod, "ip link del net1")
	nettest.Run(t, pod, fmt.Sprintf("ip link add mine index %d type veth peer name other", was.Peer))
	nettest.Run(t, pod, fmt.Sprintf("ip link add link mine name net1 mtu 1400 address %s type macvlan mode bridge", specOf(h).MAC))
	must(t, nettest.Command(pod, "ip", "link", "set", "net1", "alias", specOf(h).Alias).Run())
	nettest.Run(t, pod, fmt.Sprintf("ip link set net1 group %d", f.groups.Live()))
	for what, err := range map[string]error{"Verify": f.verify(h), "CHECK": f.all.VerifyPod(t.Context(), h)} {
		if !errors.Is(err, hold.ErrChanged) || !strings.Contains(err.Error(), "its parent is") {
			t.Errorf("%s says %v", what, err)
		}
	}
	if err := f.kind.Acquire(t.Context(), h); err == nil {
		t.Error("Acquire takes it for the owner's")
	}
	f.release(h)
}

// A pod has more macvlans than Verify looks at. Cut and Release find its own among them, and need not find one that is gone.
func TestManyInPod(t *testing.T) {
	f := newFixture(t)
	pod := f.pod()
	nettest.Run(t, pod, "ip link add mine type veth peer name other")
	var lines strings.Builder
	for i := range 1024 {
		fmt.Fprintf(&lines, "link add link mine name m%d type macvlan mode bridge\n", i)
	}
	batch(t, pod, lines.String())
	h := f.hold(pod, 1)
	var first rtnl.Link
	must(t, f.inside(h).Do(rtnl.GetLink("m0", &first), rtnl.DelLink("m0"), rtnl.DelLink("m1")))
	last := func() { // the owner's is the last in the kernel's list
		f.take(h)
		batch(t, pod, fmt.Sprintf("link add link mine name m0 index %d type macvlan mode bridge\nlink add link mine name m1 index %d type macvlan mode bridge\n",
			first.Index, first.Index+1))
	}
	last()
	must(t, f.verify(h))
	f.hides(pod, h, "more than 1024")

	must(t, f.inside(h).Do(rtnl.DelLink("m0"), rtnl.DelLink("m1")))
	last()
	nettest.Run(t, pod, "ip link del net1")
	if err := f.verify(h); err == nil || errors.Is(err, hold.ErrGone) || !strings.Contains(err.Error(), "more than 1024") {
		t.Errorf("Verify says %v", err)
	}
	must(t, f.kind.Cut(t.Context(), h))
	f.release(h)
}

// A pod makes the kernel's message about its macvlan, or about another interface, as long as it likes.
func TestLongInPod(t *testing.T) {
	names := func(link string) func(testing.TB, *ns.Netns) {
		return func(t testing.TB, pod *ns.Netns) { nettest.SecondNames(t, pod, link, 480) } // about as many as the kernel allows, 64 KiB
	}
	macs := func(link string) func(testing.TB, *ns.Netns) {
		return func(t testing.TB, pod *ns.Netns) {
			nettest.Run(t, pod, "ip link set dev "+link+" type macvlan mode source")
			nettest.Sources(t, pod, link, nlsock.LongSize/12)
		}
	}
	for what, c := range map[string]struct {
		long func(testing.TB, *ns.Netns)
		says string // Verify, of the macvlan that is called hidden
	}{
		"its second names":           {names("net1"), "renamed to hidden"},
		"its MACs":                   {macs("net1"), "too long"},
		"another one's second names": {names("other"), "renamed to hidden"},
		"another one's MACs":         {macs("mine"), "too long"},
	} {
		t.Run(what, func(t *testing.T) {
			f := newFixture(t)
			pod := f.pod()
			nettest.Run(t, pod, "ip link add other type veth peer name end") // before the owner's in the kernel's list
			nettest.Run(t, pod, "ip link add link other name mine type macvlan mode bridge")
			h := f.hold(pod, 1)
			f.take(h)
			c.long(t, pod)
			f.hides(pod, h, c.says)
		})
	}
}

// hides has a pod rename its macvlan, and cuts the macvlan off and releases it. Verify has to say something.
func (f *fixture) hides(pod *ns.Netns, h hold.Hold, says string) {
	f.Helper()
	nettest.Run(f, pod, "ip link set net1 name hidden")
	if err := f.verify(h); err == nil || errors.Is(err, hold.ErrGone) || !strings.Contains(err.Error(), says) {
		f.Errorf("Verify says %v", err)
	}
	must(f, f.kind.Cut(f.Context(), h))
	var l rtnl.Macvlan
	must(f, f.inside(h).Do(rtnl.GetMacvlan("hidden", &l)))
	if l.Up || l.Group != f.groups.Cut() {
		f.Errorf("after the cut it is %+v", l)
	}
	f.release(h)
	if there, err := pod.HasLink("hidden"); err != nil || there {
		f.Errorf("after the release it is there: %t, %v", there, err)
	}
}

// batch runs lines of ip in a pod.
func batch(t testing.TB, pod *ns.Netns, lines string) {
	t.Helper()
	cmd := nettest.Command(pod, "ip", "-batch", "-")
	cmd.Stdin = strings.NewReader(lines)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("ip -batch: %v\n%.300s", err, out)
	}
}

package bridgeport_test

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/kinds/bridgeport"
	"github.com/berth-net/berth/internal/nettest"
)

func addressesOf(h hold.Hold) (all []netip.Addr) {
	for _, a := range specOf(h).Addresses {
		all = append(all, a.Addr())
	}
	return all
}

// Two pods on one bridge and a machine of the network reach each other, with the first packet. A pod that is cut off reaches nobody, and nobody it,
// until it is taken again.
func TestTraffic(t *testing.T) {
	f := newFixture(t)
	podA, a := f.taken(1)
	for _, lan := range []netip.Addr{lan4, lan6} {
		must(t, nettest.Echo(podA, lan, nettest.Deadline))
	}
	podB, b := f.taken(2)
	for _, to := range addressesOf(b) {
		must(t, nettest.Echo(podA, to, nettest.Deadline))
		nettest.Ping(t, f.lan, to)
	}
	must(t, f.verify(b), f.all.VerifyPod(t.Context(), b))
	must(t, f.kind.Cut(t.Context(), b))
	for i, to := range addressesOf(a) {
		nettest.NoPing(t, podB, to)
		nettest.NoPing(t, podA, addressesOf(b)[i])
		nettest.NoPing(t, f.lan, addressesOf(b)[i])
	}
	if err := f.verify(b); !errors.Is(err, hold.ErrChanged) || !strings.Contains(err.Error(), "cut off") {
		t.Errorf("Verify of what is cut off says %v", err)
	}
	f.take(b) // it was not meant
	must(t, f.verify(b), f.all.VerifyPod(t.Context(), b))
	for _, to := range addressesOf(a) {
		nettest.Ping(t, podB, to)
	}
}

// A pod has no other MAC than its own: what it sends by another pod's, or by one that nobody has, gets nowhere, and takes nothing from the other pod.
func TestOwnMACAlone(t *testing.T) {
	f := newFixture(t)
	podA, a := f.taken(1)
	podB, b := f.taken(2)
	nettest.Ping(t, podB, addressesOf(a)[0])
	for _, mac := range []string{specOf(a).MAC, "02:00:00:00:77:77"} {
		nettest.Run(t, podB, "ip link set net1 address "+mac)
		nettest.Run(t, podB, "ip neigh flush all")
		nettest.NoPing(t, podB, lan4)
		nettest.NoPing(t, podB, addressesOf(a)[0])
		nettest.Ping(t, podA, lan4)
	}
	nettest.Run(t, podB, "ip link set net1 address "+specOf(b).MAC)
	nettest.Ping(t, podB, lan4)
	// A machine of the network that has the pod's MAC takes it from no pod either.
	nettest.Run(t, f.lan, "ip link set lan address "+specOf(a).MAC)
	nettest.NoPing(t, f.lan, addressesOf(b)[0])
	nettest.Ping(t, podA, addressesOf(b)[0])
	must(t, f.verify(a))
}

// Isolated pods reach the network, and not each other.
func TestIsolated(t *testing.T) {
	f := newFixture(t)
	isolated := func(s *bridgeport.Spec) { s.Isolated = true }
	podA, a := f.taken(1, isolated)
	podB, b := f.taken(2, isolated)
	nettest.NoPing(t, podA, addressesOf(b)[0])
	for _, pod := range []*ns.Netns{podA, podB} {
		nettest.Ping(t, pod, lan4)
	}
	must(t, f.verify(a), f.verify(b))
}

// A new pod gets an IPv4 address that another pod has had, and tells the network, which still remembers the other
// pod's MAC.
func TestAnnounced(t *testing.T) {
	f := newFixture(t)
	_, h := f.taken(1)
	addr := addressesOf(h)[0]
	nettest.Ping(t, f.lan, addr)
	f.release(h)
	mac := "02:00:00:00:07:07"
	f.taken(1, func(s *bridgeport.Spec) { s.MAC = mac })
	nettest.Eventually(t, "the network knows the new MAC", func() bool {
		out, err := nettest.Command(f.lan, "ip", "neigh", "show", "to", addr.String()).Output()
		return err == nil && strings.Contains(string(out), mac)
	})
}

// The bridge has learnt a pod's MAC elsewhere, where its address was before: the pod has it now.
func TestLearntElsewhere(t *testing.T) {
	f := newFixture(t)
	mac := "02:00:00:00:01:01"
	nettest.Run(t, f.lan, "ip link set lan address "+mac)
	podB, _ := f.taken(2)
	nettest.Ping(t, podB, lan4)
	nettest.Run(t, f.lan, "ip link set lan address 02:00:00:00:09:09")
	pod, h := f.taken(1)
	must(t, f.verify(h))
	nettest.Ping(t, pod, lan4)
}

// The bridge keeps its MAC and its MTU, whatever pods come.
func TestBridgeStays(t *testing.T) {
	f := newFixture(t)
	nettest.Run(t, f.node, "ip link add br1 type bridge")
	nettest.Run(t, f.node, "ip link set uplink master br1")
	nettest.Run(t, f.node, "ip link set br1 up")
	before := nettest.Snapshot(t, f.node).Only("link").String()
	_, h := f.taken(1, func(s *bridgeport.Spec) { s.Bridge = "br1" })
	f.release(h)
	if now := nettest.Snapshot(t, f.node).Only("link").String(); now != before {
		t.Errorf("the node had\n%s\nand has\n%s", before, now)
	}
	f.taken(2, func(s *bridgeport.Spec) { s.Bridge = "br1" })
	if now := nettest.Snapshot(t, f.node).Only("link").String(); !strings.Contains(now, lineOf(before, "br1")) {
		t.Errorf("the node had\n%s\nand has\n%s", before, now)
	}
}

func lineOf(text, word string) string {
	for line := range strings.Lines(text) {
		if strings.Contains(line, word) {
			return line
		}
	}
	return "no line"
}

package macvlan_test

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/kinds/macvlan"
	"github.com/berth-net/berth/internal/nettest"
)

// Two pods on one parent and a machine of the network reach each other, with the first packet. Private macvlans
// reach the network alone.
func TestTraffic(t *testing.T) {
	for _, mode := range []string{"bridge", "private"} {
		t.Run(mode, func(t *testing.T) {
			f := newFixture(t)
			in := func(s *macvlan.Spec) { s.Mode = mode }
			podA, _ := f.taken(1, in)
			for _, lan := range []netip.Addr{lan4, lan6} {
				must(t, nettest.Echo(podA, lan, nettest.Deadline))
			}
			podB, b := f.taken(2, in)
			for _, a := range specOf(b).Addresses {
				if mode == "private" {
					nettest.NoPing(t, podA, a.Addr())
				} else {
					must(t, nettest.Echo(podA, a.Addr(), nettest.Deadline))
				}
				nettest.Ping(t, f.lan, a.Addr())
			}
			must(t, f.all.VerifyPod(t.Context(), b))
			must(t, f.kind.Cut(t.Context(), b))
			for _, lan := range []netip.Addr{lan4, lan6} {
				nettest.NoPing(t, podB, lan)
				nettest.NoPing(t, f.lan, specOf(b).Addresses[0].Addr())
			}
			if err := f.glance(b); !errors.Is(err, hold.ErrChanged) || !strings.Contains(err.Error(), "cut off") {
				t.Errorf("a glance at what is cut off says %v", err)
			}
			f.take(b) // it was not meant
			must(t, f.verify(b), f.all.VerifyPod(t.Context(), b))
			for _, lan := range []netip.Addr{lan4, lan6} {
				nettest.Ping(t, podB, lan)
			}
		})
	}
}

// A new pod gets an IPv4 address that another pod has had, and tells the network, which still remembers the other
// pod's MAC.
func TestAnnounced(t *testing.T) {
	f := newFixture(t)
	_, h := f.taken(1)
	addr := specOf(h).Addresses[0].Addr()
	nettest.Ping(t, f.lan, addr)
	f.release(h)
	mac := "02:00:00:00:07:07"
	f.taken(1, func(s *macvlan.Spec) { s.MAC = mac })
	nettest.Eventually(t, "the network knows the new MAC", func() bool {
		out, err := nettest.Command(f.lan, "ip", "neigh", "show", "to", addr.String()).Output()
		return err == nil && strings.Contains(string(out), mac)
	})
}

// A macvlan in passthru has its parent's MAC, and its parent for itself.
func TestPassthru(t *testing.T) {
	f := newFixture(t)
	passthru := func(s *macvlan.Spec) { s.Mode, s.MAC = "passthru", "" }
	pod, h := f.taken(1, passthru)
	nettest.Ping(t, pod, lan4)
	must(t, f.verify(h), f.all.VerifyPod(t.Context(), h))
	other := f.hold(f.pod(), 2)
	if err := f.kind.Acquire(t.Context(), other); !errors.Is(err, kernel.ErrInvalid) || !errors.Is(err, hold.ErrUnused) {
		t.Errorf("a second macvlan: %v", err)
	}
	f.release(h)
	f.take(other)
}

// A pod's other interface has the route already: that one wins, and goes on winning.
func TestRouteOfAnotherInterface(t *testing.T) {
	f := newFixture(t)
	pod := f.pod()
	nettest.Run(t, pod, "ip link add eth0 type veth peer name other")
	nettest.Run(t, pod, "ip link set eth0 up")
	nettest.Run(t, pod, "ip route add 198.51.100.0/24 dev eth0")
	h := f.hold(pod, 1)
	f.take(h)
	must(t, f.all.VerifyPod(t.Context(), h))
	var way rtnl.Way
	must(t, f.inside(h).Do(rtnl.GetWay(netip.MustParseAddr("198.51.100.7"), netip.Addr{}, 0, &way)))
	if way.Index == f.show(h).Index {
		t.Error("the macvlan's route wins")
	}
	nettest.Ping(t, pod, lan4)
}

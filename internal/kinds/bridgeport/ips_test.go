package bridgeport_test

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/kinds/bridgeport"
	"github.com/berth-net/berth/internal/kinds/kindtest"
	"github.com/berth-net/berth/internal/nettest"
)

// bare makes a pod whose end of a port is bare, and returns the port's hold and that of the pod's addresses.
func (f *fixture) bare(owner hold.ID, n int) (pod *ns.Netns, port, ips hold.Hold) {
	f.Helper()
	pod = nettest.Pod(f)
	s := spec(owner, n)
	s.Netns = pod.Ref()
	late := &bridgeport.IPs{Spec: *s}
	s.Bare, s.Addresses, s.Routes = true, nil, nil
	port = hold.Hold{Owner: owner, Spec: s}
	f.take(port)
	return pod, port, hold.Hold{Owner: owner, Spec: late}
}

// ofEnd are the addresses and routes of a pod by its end.
func ofEnd(t testing.TB, pod *ns.Netns) string {
	var all []string
	if there, err := pod.HasLink("net1"); err != nil || !there {
		return "" // its test has ended
	}
	for line := range strings.Lines(nettest.Snapshot(t, pod).Only("address", "route").String()) {
		if strings.Contains(line, "dev net1") && !strings.Contains(line, "multicast") && !strings.Contains(line, "fe80::") { // the kernel's own come when it likes
			all = append(all, pod.Ref().Path+" "+line)
		}
	}
	return strings.Join(all, "")
}

func TestIPsKind(t *testing.T) {
	f := newFixture(t)
	var n atomic.Int32
	var mu sync.Mutex
	var pods []*ns.Netns
	kindtest.Run(t, kindtest.Kind{
		Kind: f.all.IPsKind(),
		Spec: func(t testing.TB, owner hold.ID) hold.Spec {
			pod, _, ips := f.bare(owner, 1+int(n.Add(1))%250)
			mu.Lock()
			defer mu.Unlock()
			pods = append(pods, pod)
			return ips.Spec
		},
		Example: &bridgeport.IPs{Spec: bridgeport.Spec{
			Name: "ptestabcdefghij", Alias: "bport testabcdef abcdefghij net/pod/net1 @7", Ifname: "net1",
			Netns:  ns.Ref{Path: "/run/netns/a", Dev: 4, Ino: 4026532281, ID: 7},
			Bridge: "br0", Isolated: true, Hairpin: true, MTU: 1400, MAC: "02:00:00:00:00:01", HostMAC: "fe:00:00:00:00:01", Bare: true,
			Addresses: []netip.Prefix{netip.MustParsePrefix("192.0.2.7/24")},
			Routes:    []bridgeport.Route{{Dst: netip.MustParsePrefix("203.0.113.0/24"), Gateway: lan4}},
		}},
		Snapshot: func() string {
			mu.Lock()
			defer mu.Unlock()
			var all []string
			for _, p := range pods {
				all = append(all, ofEnd(f, p))
			}
			return strings.Join(all, "")
		},
		Undisguised: "an address is there, or is not",
	})
}

// A bare end gets its addresses and routes later, and is reached by them. Its port stays up when it is cut off; the cut of the addresses sets the port
// down. When the addresses are released they are off the end, and the port is up, so that somebody may still say something by it. Then it goes.
func TestIPsLater(t *testing.T) {
	f := newFixture(t)
	pod, port, ips := f.bare(hold.NewID(), 7)
	k := f.all.IPsKind()
	s := &ips.Spec.(*bridgeport.IPs).Spec
	verify := func() error { return k.Verify(t.Context(), nil, []hold.Hold{ips})[0] }
	glance := func() error { return k.Verify(t.Context(), hold.Glance(), []hold.Hold{ips})[0] }
	if err := verify(); !errors.Is(err, hold.ErrGone) || !f.show(port).Up || ofEnd(t, pod) != "" {
		t.Errorf("bare: %v, and the pod has\n%s", err, ofEnd(t, pod))
	}
	must(t, k.Acquire(t.Context(), ips), k.Settle(t.Context(), ips), verify(), f.verify(port), f.all.VerifyPod(t.Context(), ips))
	for _, a := range s.Addresses {
		nettest.Ping(t, f.lan, a.Addr())
	}
	was := ofEnd(t, pod)
	must(t, k.Acquire(t.Context(), ips)) // again
	if now := ofEnd(t, pod); now != was {
		t.Errorf("the pod had\n%s\nand has\n%s", was, now)
	}

	nettest.Run(t, pod, "ip addr del "+s.Addresses[0].String()+" dev net1")
	if errs := []error{glance(), verify(), glance()}; errs[0] != nil || !errors.Is(errs[1], hold.ErrGone) || !errors.Is(errs[2], hold.ErrGone) {
		t.Errorf("without an address a glance says %v, then a look %v, then a glance %v", errs[0], errs[1], errs[2])
	}
	must(t, k.Acquire(t.Context(), ips), verify(), f.all.VerifyPod(t.Context(), ips))

	must(t, f.kind.Cut(t.Context(), port))
	if !f.show(port).Up {
		t.Error("the cut of a bare port sets it down")
	}
	must(t, f.kind.Acquire(t.Context(), port), verify()) // the repair leaves the addresses alone
	must(t, k.Cut(t.Context(), ips))
	if errs := []error{glance(), verify()}; f.show(port).Up || !errors.Is(errs[0], hold.ErrChanged) || !errors.Is(errs[1], hold.ErrChanged) {
		t.Errorf("after the cut of the addresses the port is %+v, and %v", f.show(port), errs)
	}
	nettest.NoPing(t, f.lan, s.Addresses[0].Addr())
	must(t, f.kind.Acquire(t.Context(), port), k.Acquire(t.Context(), ips), k.Settle(t.Context(), ips), verify(), f.all.VerifyPod(t.Context(), ips)) // a repair
	nettest.Ping(t, f.lan, s.Addresses[0].Addr())

	nettest.Run(t, pod, "ip addr add 198.51.100.7/32 dev net1") // the pod's own
	must(t, k.Cut(t.Context(), ips), k.Release(t.Context(), []hold.Hold{ips})[0])
	if got := ofEnd(t, pod); !f.show(port).Up || f.show(port).Group != f.groups.Cut() || got != "" {
		t.Errorf("after the release the port is %+v, and the pod has\n%s", f.show(port), got)
	}
	f.release(port)
	must(t, k.Cut(t.Context(), ips), k.Release(t.Context(), []hold.Hold{ips})[0]) // nothing is there
	if err := k.Acquire(t.Context(), ips); err == nil {
		t.Error("a port that is gone gets addresses")
	}
}

// A port that somebody has made anew lacks the addresses of the former one, also for a glance. While the pod's end is out of the pod, nobody knows which
// addresses it has: a release of the addresses leaves the port down.
func TestIPsOfAnotherEnd(t *testing.T) {
	f := newFixture(t)
	pod, port, ips := f.bare(hold.NewID(), 8)
	k := f.all.IPsKind()
	glance := func() error { return k.Verify(t.Context(), hold.Glance(), []hold.Hold{ips})[0] }
	must(t, k.Acquire(t.Context(), ips), glance(), glance())
	nettest.Run(t, f.node, "ip link del "+specOf(port).Name)
	f.take(port)
	if err := glance(); !errors.Is(err, hold.ErrGone) {
		t.Errorf("of the addresses behind another port a glance says %v", err)
	}
	must(t, k.Acquire(t.Context(), ips), glance())

	index := f.show(port).Peer
	nettest.Run(t, pod, "ip link set net1 netns "+f.lan.Ref().Path)
	nettest.Run(t, pod, fmt.Sprintf("ip link add other index %d type bridge", index))
	must(t, k.Cut(t.Context(), ips), k.Release(t.Context(), []hold.Hold{ips})[0])
	if f.show(port).Up || !f.show(port).Link.Veth {
		t.Errorf("the port is %+v", f.show(port))
	}
	if err := k.Acquire(t.Context(), ips); err == nil {
		t.Error("an end in another namespace gets addresses")
	}
}

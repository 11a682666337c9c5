package macvlan_test

import (
	"errors"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/kinds/kindtest"
	"github.com/berth-net/berth/internal/kinds/macvlan"
	"github.com/berth-net/berth/internal/nettest"
)

// bare makes a pod with a bare macvlan, and returns the macvlan's hold and that of its addresses.
func (f *fixture) bare(owner hold.ID, n int) (face, ips hold.Hold) {
	f.Helper()
	s := spec(owner, n)
	s.Netns = f.pod().Ref()
	late := &macvlan.IPs{Spec: *s}
	s.Bare, s.Addresses, s.Routes = true, nil, nil
	face = hold.Hold{Owner: owner, Spec: s}
	f.take(face)
	return face, hold.Hold{Owner: owner, Spec: late}
}

func TestIPsKind(t *testing.T) {
	f := newFixture(t)
	var n atomic.Int32
	kindtest.Run(t, kindtest.Kind{
		Kind: f.all.IPsKind(),
		Spec: func(t testing.TB, owner hold.ID) hold.Spec {
			_, ips := f.bare(owner, 1+int(n.Add(1))%250)
			return ips.Spec
		},
		Example: &macvlan.IPs{Spec: macvlan.Spec{
			Alias: "berth-macvlan testabcdef abcdefghij net1 default/pod/net1", Ifname: "net1",
			Netns:  ns.Ref{Path: "/run/netns/a", Dev: 4, Ino: 4026532281, ID: 7},
			Parent: "eth0", Mode: "bridge", MTU: 1400, MAC: "02:00:00:00:00:01", Bare: true,
			Addresses: []netip.Prefix{netip.MustParsePrefix("192.0.2.7/24")},
			Routes:    []macvlan.Route{{Dst: netip.MustParsePrefix("203.0.113.0/24"), Gateway: lan4}},
		}},
		Snapshot:    f.addresses,
		Undisguised: "an address is there, or is not",
	})
}

// addresses are those on the pods' macvlans, with the routes that they have by them. Link-local ones are the kernel's: the route to one comes
// when the kernel has found no duplicate of the address.
func (f *fixture) addresses() string {
	var all []string
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, p := range f.pods {
		there, err := p.HasLink("net1")
		if err != nil || !there {
			continue // its test has ended
		}
		for line := range strings.Lines(nettest.Snapshot(f, p).Only("address", "route").String()) {
			if strings.Contains(line, "dev net1") && !strings.Contains(line, "multicast") && !strings.Contains(line, "fe80::") {
				all = append(all, p.Ref().Path+" "+line)
			}
		}
	}
	return strings.Join(all, "")
}

// A bare macvlan gets its addresses and routes later, and is reached by them. It stays up when it is cut off, and its addresses do not answer then; when
// they are released they are off the macvlan, which is up, so that somebody may still say something by it. Then it goes.
func TestIPsLater(t *testing.T) {
	f := newFixture(t)
	face, ips := f.bare(hold.NewID(), 7)
	k := f.all.IPsKind()
	s := &ips.Spec.(*macvlan.IPs).Spec
	verify := func() error { return k.Verify(t.Context(), nil, []hold.Hold{ips})[0] }
	pod, err := s.Netns.Open()
	must(t, err)
	defer pod.Close()
	has := func() string { return nettest.Snapshot(t, pod).Only("address", "route").String() }
	if err := verify(); !errors.Is(err, hold.ErrGone) || !f.show(face).Up || strings.Contains(has(), "dev net1") {
		t.Errorf("bare: %v, and the pod has\n%s", err, has())
	}
	must(t, k.Acquire(t.Context(), ips), k.Settle(t.Context(), ips), verify(), f.verify(face), f.all.VerifyPod(t.Context(), ips))
	for _, a := range s.Addresses {
		nettest.Ping(t, f.lan, a.Addr())
	}
	was := has()
	must(t, k.Acquire(t.Context(), ips)) // again
	if now := has(); now != was {
		t.Errorf("the pod had\n%s\nand has\n%s", was, now)
	}

	glance := func() error { return k.Verify(t.Context(), hold.Glance(), []hold.Hold{ips})[0] }
	nettest.Run(t, pod, "ip addr del "+s.Addresses[0].String()+" dev net1")
	if errs := []error{glance(), verify(), glance()}; errs[0] != nil || !errors.Is(errs[1], hold.ErrGone) || !errors.Is(errs[2], hold.ErrGone) {
		t.Errorf("without an address a glance says %v, then a look %v, then a glance %v", errs[0], errs[1], errs[2])
	}
	must(t, k.Acquire(t.Context(), ips), verify(), f.all.VerifyPod(t.Context(), ips))
	must(t, k.Cut(t.Context(), ips))
	if err := glance(); err == nil {
		t.Error("after a cut a glance enters no pod")
	}
	must(t, f.kind.Acquire(t.Context(), face), k.Acquire(t.Context(), ips), k.Settle(t.Context(), ips), verify())

	must(t, f.kind.Cut(t.Context(), face))
	if !f.show(face).Up {
		t.Error("the cut of a bare macvlan sets it down")
	}
	must(t, f.kind.Acquire(t.Context(), face), verify()) // the repair leaves the addresses alone
	must(t, k.Cut(t.Context(), ips))
	if err := verify(); f.show(face).Up || !errors.Is(err, hold.ErrChanged) && !errors.Is(err, hold.ErrGone) {
		t.Errorf("after the cut of the addresses the macvlan is up, or %v", err)
	}
	must(t, f.kind.Acquire(t.Context(), face), k.Acquire(t.Context(), ips), k.Settle(t.Context(), ips), verify(), f.all.VerifyPod(t.Context(), ips)) // a repair

	nettest.Run(t, pod, "ip addr add 198.51.100.7/32 dev net1") // the pod's own
	must(t, k.Cut(t.Context(), ips), k.Release(t.Context(), []hold.Hold{ips})[0])
	if got := has(); !f.show(face).Up || strings.Contains(got, "dev net1") {
		t.Errorf("after the release the pod has\n%s", got)
	}
	f.release(face)
	must(t, k.Cut(t.Context(), ips), k.Release(t.Context(), []hold.Hold{ips})[0]) // nothing is there
	if err := k.Acquire(t.Context(), ips); err == nil {
		t.Error("a macvlan that is gone gets addresses")
	}
}

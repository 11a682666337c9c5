package macvlan_test

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kinds/macvlan"
	"github.com/berth-net/berth/internal/nettest"
)

// A repair of the addresses stops half-way: it is killed before the interface is up, or a route fails. Verify says so, also by a glance and of another
// agent, until a repair has come to its end.
func TestIPsHalfMade(t *testing.T) {
	for what, c := range map[string]struct{ harm, heal string }{
		"killed":        {},
		"a route fails": {"ip addr add 192.0.2.254/32 dev lo", "ip addr del 192.0.2.254/32 dev lo"}, // the gateway's address,
	} {
		t.Run(what, func(t *testing.T) {
			var killed bool
			f := newFixture(t, func(o *macvlan.Options) {
				o.Going = func(hold.ID) (bool, error) { // between the addresses and the interface's coming up
					if killed {
						return false, errors.New("killed")
					}
					return false, nil
				}
			})
			_, ips := f.bare(hold.NewID(), 7)
			pod, err := ips.Spec.(*macvlan.IPs).Netns.Open()
			must(t, err)
			defer pod.Close()
			look := func(k hold.Kind, l *hold.Look) error { return k.Verify(t.Context(), l, []hold.Hold{ips})[0] }
			k, s := f.all.IPsKind(), &ips.Spec.(*macvlan.IPs).Spec
			must(t, k.Acquire(t.Context(), ips), look(k, nil))
			nettest.Run(t, pod, "ip addr del "+s.Addresses[0].String()+" dev net1") // a reason for a repair
			if c.harm == "" {
				killed = true
			} else {
				nettest.Run(t, pod, c.harm)
			}
			if err := k.Acquire(t.Context(), ips); err == nil {
				t.Error("it is repaired")
			}
			again := macvlan.New(macvlan.Options{Conn: f.conn, At: f.node, Instance: instance}).IPsKind()
			for i, err := range []error{look(k, nil), look(k, hold.Glance()), look(again, hold.Glance()), look(again, nil), look(again, hold.Glance())} {
				if !errors.Is(err, hold.ErrHalfMade) {
					t.Errorf("%d: Verify says %v", i, err)
				}
			}
			if killed = false; c.heal != "" {
				nettest.Run(t, pod, c.heal)
			}
			must(t, k.Acquire(t.Context(), ips), k.Settle(t.Context(), ips), look(k, nil), look(again, nil), f.all.VerifyPod(t.Context(), ips))
			nettest.Ping(t, f.lan, s.Addresses[0].Addr())
			nettest.Sysctl(t, pod, "ipv4/conf/net1/arp_notify", "2") // killed before its last step
			if err := look(k, nil); !errors.Is(err, hold.ErrHalfMade) {
				t.Errorf("with all but the last step done Verify says %v", err)
			}
			must(t, k.Acquire(t.Context(), ips), look(k, nil))
		})
	}
}

// A pod has more addresses on its interface than anybody looks at: all of them go.
func TestStripMany(t *testing.T) {
	f := newFixture(t)
	_, ips := f.bare(hold.NewID(), 7)
	pod, err := ips.Spec.(*macvlan.IPs).Netns.Open()
	must(t, err)
	defer pod.Close()
	k := f.all.IPsKind()
	must(t, k.Acquire(t.Context(), ips))
	var lines strings.Builder
	for i := range 3000 {
		fmt.Fprintf(&lines, "addr add 10.0.%d.%d/32 dev net1\n", i>>8, i&255)
	}
	batch(t, pod, lines.String())
	must(t, k.Cut(t.Context(), ips), k.Release(t.Context(), []hold.Hold{ips})[0])
	if got := nettest.Snapshot(t, pod).Only("address").String(); strings.Contains(got, "dev net1") {
		t.Errorf("the pod has\n%.300s", got)
	}
}

// What a pod does to the state of its own interface and to its routes, no sweep undoes. Another Acquire does.
func TestIPsOfAPodsOwn(t *testing.T) {
	f := newFixture(t)
	_, ips := f.bare(hold.NewID(), 7)
	pod, err := ips.Spec.(*macvlan.IPs).Netns.Open()
	must(t, err)
	defer pod.Close()
	look := func(k hold.Kind, l *hold.Look) error { return k.Verify(t.Context(), l, []hold.Hold{ips})[0] }
	k, s := f.all.IPsKind(), &ips.Spec.(*macvlan.IPs).Spec
	s.Addresses, s.Routes = s.Addresses[:1], s.Routes[:2] // an interface that is down has no address of IPv6
	must(t, k.Acquire(t.Context(), ips), look(k, nil))
	for _, line := range []string{"ip route del 203.0.113.0/24", "ip link set net1 down"} {
		nettest.Run(t, pod, line)
		was := nettest.Snapshot(t, pod)
		must(t, look(k, nil), look(k, hold.Glance()))
		nettest.Same(t, was, nettest.Snapshot(t, pod), line+": the pod")
	}
	must(t, k.Acquire(t.Context(), ips), f.all.VerifyPod(t.Context(), ips))

	s.Addresses, s.Routes = []netip.Prefix{netip.PrefixFrom(s.Addresses[0].Addr(), 32)}, nil // so that nothing is missing when it is down
	must(t, k.Acquire(t.Context(), ips))
	nettest.Run(t, pod, "ip link set net1 down")
	must(t, k.Acquire(t.Context(), ips), f.all.VerifyPod(t.Context(), ips))
}

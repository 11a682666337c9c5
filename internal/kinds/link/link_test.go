package link_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel/nft"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/kinds/kindtest"
	"github.com/berth-net/berth/internal/kinds/link"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/stamp"
)

func TestKind(t *testing.T) {
	f := newFixture(t)
	f.forwarding()
	kindtest.Run(t, kindtest.Kind{
		Kind: f.kind,
		Spec: func(t testing.TB, owner hold.ID) hold.Spec {
			h := f.hold(nettest.Pod(t).Ref(), both)
			s := spec(h)
			s.Name, s.Alias = stamp.Link(prefix, owner), strings.Replace(s.Alias, string(h.Owner), string(owner), 1)
			return s
		},
		Example: &link.Spec{
			Name:      "btestabcdefghij",
			Alias:     "default/eth0",
			Netns:     ns.Ref{Path: "/run/netns/a", Dev: 4, Ino: 4026532281, ID: 7},
			Ifname:    "eth0",
			MTU:       1400,
			MAC:       "02:00:00:00:00:01",
			HostMAC:   "02:00:00:00:00:02",
			Addresses: []netip.Addr{netip.MustParseAddr("10.88.0.7"), netip.MustParseAddr("fd88::7")},
			Ingress:   rtnl.Rate{Rate: 1_250_000, Burst: 100_000},
			Egress:    rtnl.Rate{Rate: 2_500_000, Burst: 200_000},
		},
		// The test itself mounts the pods' namespaces between snapshots.
		Snapshot: func() string {
			found, err := f.kind.Find(t.Context(), nil)
			must(t, err)
			for _, h := range found {
				f.show(h) // brings its carrier, and with it a route for multicast, up to date
			}
			return nettest.Snapshot(t, nil).Without("mount").String()
		},
		Foreign:  takenIfname,
		Disguise: func(t testing.TB, h hold.Hold) { must(t, f.conn.Do(rtnl.Rename(f.show(h).Index, f.alias()))) },
	})
}

// takenIfname makes somebody else's interface in the pod, with the name that the link wants.
func takenIfname(t testing.TB, h hold.Hold) (intact func() error) {
	pod, err := spec(h).Netns.Open()
	must(t, err)
	t.Cleanup(func() { pod.Close() })
	must(t, pod.Do(func() error {
		return netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: spec(h).Ifname}, PeerName: "other"})
	}))
	before := nettest.Snapshot(t, pod)
	return func() error {
		if diff := before.Diff(nettest.Snapshot(t, pod)); diff != "" {
			return fmt.Errorf("the pod changed:\n%s", diff)
		}
		return nil
	}
}

// Node and pods reach each other by their links at once, without any address resolution.
func TestPings(t *testing.T) {
	f := newFixture(t)
	f.forwarding()
	podA, a := f.pod(both)
	podB, b := f.pod(both)
	must(t, f.links.VerifyPod(t.Context(), a))
	for i, node := range []netip.Addr{node4, node6} {
		nettest.Ping(t, podA, spec(b).Addresses[i])
		nettest.Ping(t, podB, spec(a).Addresses[i])
		nettest.Ping(t, podA, node)
		nettest.Ping(t, nil, spec(a).Addresses[i])
	}
}

// The first packet after ADD is not lost.
func TestReadyAtOnce(t *testing.T) {
	f := newFixture(t)
	f.forwarding()
	for range 20 {
		pod, _ := f.pod(both)
		for _, node := range []netip.Addr{node4, node6} {
			must(t, nettest.Echo(pod, node, nettest.Deadline))
		}
	}
}

// A pod has the families that it asked for, and the kernel gives neither end an address of
// its own making.
func TestFamilies(t *testing.T) {
	f := newFixture(t)
	f.forwarding()
	for _, families := range []string{"4", "6", both} {
		t.Run(families, func(t *testing.T) {
			f := *f
			f.TB = t
			pod, h := f.pod(families)
			must(t, f.links.VerifyPod(t.Context(), h))
			for _, a := range spec(h).Addresses {
				nettest.Ping(t, nil, a)
			}
			want := slices.Clone(spec(h).Addresses)
			must(t, pod.Do(func() error {
				eth0 := nettest.Link(t, "eth0")
				have := nettest.List(t, func() ([]netlink.Addr, error) { return netlink.AddrList(eth0, netlink.FAMILY_ALL) })
				var got []netip.Addr
				for _, a := range have {
					addr, _ := netip.AddrFromSlice(a.IP)
					got = append(got, addr.Unmap())
				}
				slices.SortFunc(got, netip.Addr.Compare)
				slices.SortFunc(want, netip.Addr.Compare)
				if !slices.Equal(got, want) {
					t.Errorf("the pod has %v, not %v", got, want)
				}
				f.sysctl(t, "eth0", families)
				return nil
			}))
			f.sysctl(t, spec(h).Name, families)
			if on, err := f.conn.Addresses(f.show(h).Index); err != nil || len(on) > 0 {
				t.Errorf("the host's end has %v, %v", on, err)
			}
		})
	}
}

// sysctl checks a link's IPv6 in the calling thread's namespace.
func (f *fixture) sysctl(t *testing.T, name, families string) {
	t.Helper()
	want := map[string]string{"disable_ipv6": "1"}
	if families != "4" {
		want = map[string]string{"disable_ipv6": "0", "accept_ra": "0", "addr_gen_mode": "1"}
	}
	for key, value := range want {
		if got, err := ns.Sysctl("ipv6/conf/" + name + "/" + key); err != nil || got != value {
			t.Errorf("%s of %s is %q, %v, not %s", key, name, got, err, value)
		}
	}
}

// The routes of a pod's second interface stand behind those of the first. Others reach the second
// interface's addresses all the same, on a host that accepts each address from its own link only.
func TestTwoInterfaces(t *testing.T) {
	f := newFixture(t)
	f.forwarding()
	f.ownAddressesOnly()
	pod, first := f.pod(both)
	second := f.hold(pod.Ref(), both)
	spec(second).Ifname = "net1"
	f.take(second)
	must(t, f.links.VerifyPod(t.Context(), second))
	for i, node := range []netip.Addr{node4, node6} {
		nettest.Ping(t, pod, node)
		nettest.Ping(t, nil, spec(second).Addresses[i])
	}
	f.release(first)
	for _, node := range []netip.Addr{node4, node6} {
		nettest.Ping(t, pod, node)
	}
	f.release(second)
}

// ownAddressesOnly makes the host drop packets that come in by a link from an address that is not the
// link's.
func (f *fixture) ownAddressesOnly() {
	f.Helper()
	node, err := ns.Self()
	must(f, err)
	low, high := f.groups.Dying()
	rules := nft.Ruleset{Instance: prefix, CutLow: low, CutHigh: high, Live: f.groups.Live()}
	must(f, nft.Open(node).Replace(rules))
	f.Cleanup(func() {
		if err := nft.Open(node).Delete(prefix); err != nil {
			f.Error(err)
		}
		node.Close()
	})
}

func TestNames(t *testing.T) {
	a, b := hold.NewID(), hold.NewID()
	if got, want := stamp.Link("abcd", "0123456789"), "babcd0123456789"; got != want {
		t.Errorf("name %s, not %s", got, want)
	}
	podA, hostA := link.MACs(a)
	podB, hostB := link.MACs(b)
	macs := []string{podA, hostA, podB, hostB}
	slices.Sort(macs)
	if len(slices.Compact(macs)) != 4 {
		t.Errorf("%v are not four MACs", macs)
	}
	if again, _ := link.MACs(a); again != podA {
		t.Errorf("%s became %s", podA, again)
	}
}

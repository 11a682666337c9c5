package link_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel/nlsock"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/kinds/link"
	"github.com/berth-net/berth/internal/nettest"
)

// CHECK names what differs inside the pod.
func TestVerifyPod(t *testing.T) {
	f := newFixture(t)
	for _, test := range []struct {
		name, says string
		is         error
		change     func(eth0 netlink.Link, s *link.Spec) error
	}{
		{"as it was", "", nil, func(netlink.Link, *link.Spec) error { return nil }},
		{"more than Berth's", "", nil, func(l netlink.Link, _ *link.Spec) error {
			a, err := netlink.ParseAddr("10.1.2.3/24")
			must(t, err)
			return netlink.AddrAdd(l, a)
		}},
		{"link renamed", "interface eth0", hold.ErrGone, func(l netlink.Link, _ *link.Spec) error { return netlink.LinkSetName(l, "eth7") }},
		{"mac", "mac 02:00:00:00:00:01, not", hold.ErrChanged, func(l netlink.Link, _ *link.Spec) error {
			return netlink.LinkSetHardwareAddr(l, []byte{2, 0, 0, 0, 0, 1})
		}},
		{"mtu", "mtu 1300, not 1400", hold.ErrChanged, func(l netlink.Link, _ *link.Spec) error { return netlink.LinkSetMTU(l, 1300) }},
		{"down", "down", hold.ErrChanged, func(l netlink.Link, _ *link.Spec) error { return netlink.LinkSetDown(l) }},
		{"address", "no address fd88::", hold.ErrChanged, func(l netlink.Link, s *link.Spec) error {
			a, err := netlink.ParseAddr(s.Addresses[1].String() + "/128")
			must(t, err)
			return netlink.AddrDel(l, a)
		}},
		{"second names", "", nil, func(l netlink.Link, _ *link.Spec) error {
			for i := range 300 { // each name has 127 bytes, the most that the kernel takes
				if err := netlink.LinkAddAltName(l, fmt.Sprintf("%0127d", i)); err != nil {
					return err
				}
			}
			return nil
		}},
		{"router advertisements", "accept_ra 2, not 0", hold.ErrChanged, func(netlink.Link, *link.Spec) error {
			return ns.SetSysctl("ipv6/conf/eth0/accept_ra", "2")
		}},
		{"no IPv6", "disable_ipv6 1, not 0", hold.ErrChanged, func(netlink.Link, *link.Spec) error {
			return ns.SetSysctl("ipv6/conf/eth0/disable_ipv6", "1")
		}},
		{"default route", "no route 0.0.0.0/0 via 169.254.1.1", hold.ErrChanged, func(l netlink.Link, _ *link.Spec) error {
			return netlink.RouteDel(&netlink.Route{LinkIndex: l.Attrs().Index, Gw: link.Gateway4.AsSlice()})
		}},
		{"neighbour", "no neighbour fe80::1 at", hold.ErrChanged, func(l netlink.Link, _ *link.Spec) error {
			return netlink.NeighDel(&netlink.Neigh{LinkIndex: l.Attrs().Index, IP: link.Gateway6.AsSlice()})
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			f := *f
			f.TB = t
			pod, h := f.pod(both)
			must(t, pod.Do(func() error {
				eth0 := nettest.Link(t, "eth0")
				return test.change(eth0, spec(h))
			}))
			f.wants(h, test.is, test.says)
		})
	}
	t.Run("IPv6 in a pod without", func(t *testing.T) {
		f := *f
		f.TB = t
		pod, h := f.pod("4")
		must(t, pod.Do(func() error { return ns.SetSysctl("ipv6/conf/eth0/disable_ipv6", "0") }))
		f.wants(h, hold.ErrChanged, "disable_ipv6 0, not 1")
	})
	t.Run("pod gone", func(t *testing.T) {
		f := *f
		f.TB = t
		pod, h := f.pod(both)
		nettest.Delete(t, pod)
		f.wants(h, hold.ErrGone, ns.ErrGone.Error())
	})
}

// A pod's second interface needs routes and rules by which its answers leave. CHECK names the missing
// routes and rules. Another route to the address that CHECK looks up, and other rules, hide nothing.
func TestVerifyPodOfSecondInterface(t *testing.T) {
	f := newFixture(t)
	for _, test := range []struct{ change, says string }{
		{"ip route add 203.0.113.0/24 dev eth0; ip rule add from 10.1.1.1 lookup 7 pref 32764", ""},
		{"ip rule del pref 32764", "no rule from ADDR4 lookup 254 pref 32764 suppress_prefixlength 0 proto 98"},
		{"ip rule del pref 32765", "no rule from ADDR4 lookup TABLE pref 32765 proto 98"},
		{"ip -6 rule del pref 32764", "no rule from ADDR6 lookup 254 pref 32764 suppress_prefixlength 0 proto 98"},
		{"ip -6 rule del pref 32765", "no rule from ADDR6 lookup TABLE pref 32765 proto 98"},
		{"ip route del default table TABLE", "no route 0.0.0.0/0 via 169.254.1.1 dev INDEX onlink table TABLE proto 98"},
		{"ip route flush table TABLE", "no route 169.254.1.1/32 dev INDEX table TABLE proto 98; no route 0.0.0.0/0 via"},
		{"ip -6 route del default table TABLE", "no route ::/0 via fe80::1 dev INDEX onlink table TABLE proto 98"},
	} {
		t.Run(test.change, func(t *testing.T) {
			f := *f
			f.TB = t
			pod, _ := f.pod(both)
			second := f.hold(pod.Ref(), both)
			s := spec(second)
			s.Ifname = "net1"
			f.take(second)
			f.wants(second, nil, "")
			inside, err := rtnl.Open(pod)
			must(t, err)
			defer inside.Close()
			net1, err := inside.Link("net1")
			must(t, err)
			in := strings.NewReplacer("INDEX", fmt.Sprint(net1.Index), "TABLE", fmt.Sprint(1<<16+net1.Index),
				"ADDR4", s.Addresses[0].String(), "ADDR6", s.Addresses[1].String())
			for _, command := range strings.Split(in.Replace(test.change), "; ") {
				nettest.Run(t, pod, command)
			}
			if test.says == "" {
				f.wants(second, nil, "")
				return
			}
			f.wants(second, hold.ErrChanged, ": changed: "+in.Replace(test.says))
		})
	}
}

func (f *fixture) wants(h hold.Hold, is error, says string) {
	f.Helper()
	err := f.links.VerifyPod(f.Context(), h)
	if !errors.Is(err, is) || err != nil && !strings.Contains(err.Error(), says) {
		f.Errorf("VerifyPod says %v: not %v with %q", err, is, says)
	}
}

// A pod puts an interface of its own in the place of its link's end. The pod keeps the real end under
// another name or in a further network namespace. CHECK says so, even if the pod gives the interface
// the name, the MAC or the addresses of the end. CHECK recognizes the link's other end by the kernel's
// answer about the host's end, also if somebody has renamed the host's end.
func TestVerifyPodOfDecoy(t *testing.T) {
	for _, test := range []struct {
		name string
		make func(f *fixture, pod, within *ns.Netns, h hold.Hold, eth0 rtnl.Link)
		says string // all that differs
	}{
		{"the MAC, addresses, routes, neighbours and limit", func(f *fixture, pod, within *ns.Netns, h hold.Hold, eth0 rtnl.Link) {
			nettest.Run(f, pod, "ip link set real down") // this deletes the interface's routes
			conn, err := rtnl.Open(within)
			must(f, err)
			defer conn.Close()
			must(f, link.New(link.Options{Conn: conn, Prefix: prefix, Groups: f.groups}).Kind().Acquire(f.Context(), h))
			nettest.Run(f, pod, "ip link set real up")
		}, "LINK"},
		{"the host's end's index", func(f *fixture, pod, within *ns.Netns, h hold.Hold, eth0 rtnl.Link) {
			decoy(f, pod, within, eth0.Index+1000, eth0.Peer)
		}, "LINK; mac"},
		{"both indices", func(f *fixture, pod, within *ns.Netns, h hold.Hold, eth0 rtnl.Link) {
			nettest.Run(f, pod, "ip link set real netns "+filepath.Base(within.Ref().Path))
			decoy(f, pod, within, eth0.Index, eth0.Peer)
		}, "LINK; mac"},
		{"its place when the link is gone", func(f *fixture, pod, within *ns.Netns, h hold.Hold, eth0 rtnl.Link) {
			nettest.Run(f, pod, "ip link del real")
			decoy(f, pod, within, eth0.Index, eth0.Peer)
		}, "LINK; mac"},
		{"nothing that anybody reads", func(f *fixture, pod, _ *ns.Netns, _ hold.Hold, _ rtnl.Link) {
			nettest.Run(f, pod, "ip link add link real name eth0 type macvlan mode source")
			nettest.Sources(f, pod, "eth0", nlsock.LongSize/12)
		}, "LINK: it says more than the agent reads"},
		{"nothing", func(f *fixture, pod, _ *ns.Netns, h hold.Hold, eth0 rtnl.Link) {
			nettest.Run(f, pod, "ip link set real name eth0")
			nettest.Run(f, nil, "ip link set "+spec(h).Name+" name "+f.alias())
		}, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			f := newFixture(t)
			pod, within := nettest.Pod(t), nettest.Pod(t)
			h := f.hold(pod.Ref(), both)
			spec(h).Egress = rtnl.Rate{Rate: 2_000_000, Burst: 1 << 20}
			f.take(h)
			t.Cleanup(func() { f.release(h) })
			f.wants(h, nil, "")
			inside, err := rtnl.Open(pod)
			must(t, err)
			defer inside.Close()
			eth0, err := inside.Link("eth0")
			must(t, err)
			nettest.Run(t, pod, "ip link set eth0 name real")
			test.make(f, pod, within, h, eth0)
			if test.says == "" {
				f.wants(h, nil, "")
				return
			}
			f.wants(h, hold.ErrChanged, ": changed: not the other end of link "+strings.Replace(test.says, "LINK", spec(h).Name, 1))
		})
	}
}

// decoy makes a veth that is eth0 in a pod and ends in another network namespace.
func decoy(t testing.TB, pod, other *ns.Netns, index, otherIndex int) {
	t.Helper()
	nettest.Run(t, pod, fmt.Sprintf("ip link add eth0 index %d type veth peer name back index %d netns %s", index, otherIndex, filepath.Base(other.Ref().Path)))
}

// VerifyPod ends with its context, and then says nothing of the pod.
func TestVerifyPodEndsWithItsContext(t *testing.T) {
	f := newFixture(t)
	_, h := f.pod(both)
	ctx, end := context.WithCancel(t.Context())
	end()
	if err := f.links.VerifyPod(ctx, h); !errors.Is(err, context.Canceled) || errors.Is(err, hold.ErrChanged) || errors.Is(err, hold.ErrGone) {
		t.Errorf("VerifyPod says %v", err)
	}
}

// VerifyPod takes bounded time and memory in a pod that makes its lists long: it looks at
// the first thousands of entries only, and says that it did not look at the rest.
func TestVerifyPodLongLists(t *testing.T) {
	f := newFixture(t)
	pod, h := f.pod(both)
	inside, err := rtnl.Open(pod)
	must(t, err)
	defer inside.Close()
	eth0, err := inside.Link("eth0")
	must(t, err)
	const long = 5000
	var rs []rtnl.Request
	for i := range long {
		a := netip.AddrFrom4([4]byte{20, 0, byte(i >> 8), byte(i)})
		rs = append(rs, rtnl.AddRoute(rtnl.Route{Dst: prefixOf(a), Index: eth0.Index}), rtnl.AddAddress(rtnl.Address{Prefix: prefixOf(a), Index: eth0.Index}))
	}
	must(t, inside.Do(rs...))
	must(t, f.links.VerifyPod(t.Context(), h))

	gateway := rtnl.Route{Dst: prefixOf(link.Gateway4), Index: eth0.Index}
	must(t, inside.Do(rtnl.DelRoute(gateway)))
	if err := f.links.VerifyPod(t.Context(), h); err == nil || errors.Is(err, hold.ErrChanged) || !strings.Contains(err.Error(), "does not look at the rest") {
		t.Errorf("with a route among %d that is not there VerifyPod says %v", long, err)
	}
	// A route that stands before Berth's route does not hide Berth's.
	must(t, inside.Do(rtnl.AddRoute(gateway)))
	before := rtnl.Route{Dst: netip.MustParsePrefix("203.0.113.0/24"), Index: eth0.Index}
	must(t, inside.Do(rtnl.AddRoute(before)))
	must(t, f.links.VerifyPod(t.Context(), h))
}

package nodetest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/berth-net/berth/internal/fault"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel/nft"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/kinds/delegate"
	"github.com/berth-net/berth/internal/kinds/deviceinfo"
	"github.com/berth-net/berth/internal/kinds/flows"
	"github.com/berth-net/berth/internal/kinds/hostports"
	"github.com/berth-net/berth/internal/kinds/kindtest"
	"github.com/berth-net/berth/internal/kinds/link"
	"github.com/berth-net/berth/internal/kinds/noderoute"
	"github.com/berth-net/berth/internal/kinds/podgateway"
	"github.com/berth-net/berth/internal/kinds/podstatus"
	"github.com/berth-net/berth/internal/kinds/poolroute"
	"github.com/berth-net/berth/internal/kinds/shaping"
	"github.com/berth-net/berth/internal/kinds/table"
	"github.com/berth-net/berth/internal/kinds/vxlan"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/node"
	"github.com/berth-net/berth/internal/stamp"
)

// The kinds of a node in memory pass the same tests as the real kinds.
func TestKinds(t *testing.T) {
	w := New()
	plan := fault.New(1, fault.FailBefore)
	plan.Heal()
	n, err := w.Open(plan, nil)()
	if err == nil {
		err = n.Mark("aaaa", node.Hooks{})
	}
	nettest.Must(t, err)
	var last atomic.Uint32
	address := func() netip.Addr { i := last.Add(1); return netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}) }
	tested := []kindtest.Kind{
		{
			Kind: n.Links.Kind(),
			Spec: func(t testing.TB, owner hold.ID) hold.Spec {
				p := w.Pod(fmt.Sprintf("/run/netns/%s", owner))
				pod, host := link.MACs(owner)
				return &link.Spec{
					Name: stamp.Link("aaaa", owner), Alias: string(owner), Netns: p.ref, Ifname: "eth0", MTU: 1400,
					MAC: pod, HostMAC: host, Addresses: []netip.Addr{address()},
					Ingress: rtnl.Rate{Rate: 1000, Burst: 1514}, Egress: rtnl.Rate{Rate: 2000, Burst: 1514},
				}
			},
			Foreign: w.foreignLink,
			Disguise: func(_ testing.TB, h hold.Hold) {
				w.SetLink(h.Spec.(*link.Spec).Name, func(l *Link) { l.MTU++ })
			},
		},
		{
			Kind:  n.Table.Kind(),
			Alone: true,
			Spec:  func(testing.TB, hold.ID) hold.Spec { return &table.Spec{Instance: "aaaa"} },
			Disguise: func(testing.TB, hold.Hold) {
				w.mu.Lock()
				defer w.mu.Unlock()
				w.table.Live++
			},
		},
		{
			Kind: withoutFind(n.Routes.Kind()), // a route cannot say who owns it
			Spec: func(testing.TB, hold.ID) hold.Spec {
				return &poolroute.Spec{CIDR: netip.PrefixFrom(address(), 32), Metric: n.Metric}
			},
			Foreign:     w.foreignRoute,
			Undisguised: "a route is its destination and its metric",
		},
		{
			Kind: withoutFind(n.NodeRoutes.Kind()), // a route cannot say who owns it
			Spec: func(testing.TB, hold.ID) hold.Spec {
				return &noderoute.Spec{CIDR: netip.PrefixFrom(address(), 32), Via: netip.MustParseAddr("192.0.2.11"), Metric: n.Metric}
			},
			Foreign:     w.foreignWay,
			Undisguised: "a route is its destination, its metric and its gateway",
		},
		{
			Kind:     n.Tunnel.DeviceKind(),
			Alone:    true,
			Spec:     func(testing.TB, hold.ID) hold.Spec { return tunnelSpec() },
			Disguise: func(testing.TB, hold.Hold) { w.mu.Lock(); defer w.mu.Unlock(); w.nodes.Change() },
			Lose:     func(testing.TB, hold.Hold) { w.mu.Lock(); defer w.mu.Unlock(); w.nodes.Untunnel() },
		},
		{
			Kind:        withoutFind(n.Tunnel.PeerKind()), // an entry does not say who owns it
			Spec:        func(testing.TB, hold.ID) hold.Spec { return &vxlan.Peer{Instance: "aaaa", Node: address()} },
			Undisguised: "a peer is its address",
		},
		{
			Kind:   flows.Kind(n.Tracked, n.Conn),
			Unseen: true,
			Spec:   func(testing.TB, hold.ID) hold.Spec { return &flows.Spec{Addresses: []netip.Addr{address()}} },
		},
		{
			Kind:    n.Ports.Kind(),
			Spec:    func(_ testing.TB, owner hold.ID) hold.Spec { return hostPort(owner, address()) },
			Foreign: w.foreignPort,
			Disguise: func(_ testing.TB, h hold.Hold) {
				w.mu.Lock()
				defer w.mu.Unlock()
				others := slices.Clone(w.ports[h.Owner])
				others[0].Pod = netip.MustParseAddrPort("10.2.0.2:1")
				w.ports[h.Owner] = others
			},
		},
	}
	tested = append(tested, kindtest.Kind{
		Kind: n.Shaping.Kind(),
		Spec: func(_ testing.TB, owner hold.ID) hold.Spec {
			return &shaping.Spec{Link: string(owner), Index: 7, Ifname: "eth0", MTU: 1500, Ingress: rtnl.Rate{Rate: 1000, Burst: 1514}}
		},
		Disguise: func(_ testing.TB, h hold.Hold) {
			w.mu.Lock()
			defer w.mu.Unlock()
			s := *h.Spec.(*shaping.Spec)
			s.Ingress.Rate++
			w.limits[s.Link] = s
		},
	})
	names := []string{delegate.KindName, delegate.IPAMKind, delegate.LeaseKind, deviceinfo.KindName, podgateway.KindName, podstatus.KindName} // the real kinds, which a node in memory has as well
	for _, c := range tested {
		names = append(names, c.Kind.Name())
	}
	if want := n.Kinds().Names(); !slices.Equal(slices.Sorted(slices.Values(names)), slices.Sorted(slices.Values(want))) {
		t.Errorf("kinds that are tested: %v, and a node has %v", names, want)
	}
	for _, c := range tested {
		if c.Kind.Name() == hostports.KindName { // the ports are in the table
			nettest.Must(t, n.Table.Kind().Acquire(t.Context(), hold.Hold{Owner: hold.NewID(), Spec: &table.Spec{Instance: "aaaa"}}))
		}
		if c.Kind.Name() == vxlan.PeerKind {
			nettest.Must(t, n.Tunnel.DeviceKind().Acquire(t.Context(), hold.Hold{Owner: hold.NewID(), Spec: tunnelSpec()}))
		}
		c.Fake, c.Snapshot = true, func() string { return w.State().String() }
		t.Run(c.Kind.Name(), func(t *testing.T) { kindtest.Run(t, c) })
	}
}

func tunnelSpec() *vxlan.Device {
	return &vxlan.Device{Instance: "aaaa", VNI: 98, Port: 4789, Local: netip.MustParseAddr("192.0.2.1"), MTU: 1400}
}

func hostPort(owner hold.ID, pod netip.Addr) *hostports.Spec {
	host := netip.AddrPortFrom(netip.IPv4Unspecified(), binary.BigEndian.Uint16(pod.AsSlice()[2:])+1000)
	return &hostports.Spec{Link: stamp.Link("aaaa", owner), Mappings: []nft.Mapping{{Protocol: "tcp", Host: host, Pod: netip.AddrPortFrom(pod, 80)}}}
}

// foreignPort maps the hold's port to somebody else.
func (w *Node) foreignPort(_ testing.TB, h hold.Hold) func() error {
	m := h.Spec.(*hostports.Spec).Mappings[0]
	m.Pod = netip.MustParseAddrPort("10.2.0.1:1")
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ports == nil {
		w.ports = map[hold.ID][]nft.Mapping{}
	}
	w.ports["foreigner2"] = []nft.Mapping{m}
	return func() error {
		if !slices.Equal(w.ports["foreigner2"], []nft.Mapping{m}) {
			return errors.New("it is gone")
		}
		return nil
	}
}

func withoutFind(k hold.Kind) hold.Kind {
	k.Find = nil
	return k
}

// foreignLink puts somebody else's interface into the pod, with the name that the hold
// wants.
func (w *Node) foreignLink(_ testing.TB, h hold.Hold) func() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	pod, err := w.find(h.Spec.(*link.Spec).Netns)
	if err != nil {
		return func() error { return err }
	}
	other := &Link{Name: "other", Pod: pod, Ifname: "eth0"}
	pod.ends["eth0"] = other
	return func() error {
		if pod.ends["eth0"] != other {
			return errors.New("it is gone")
		}
		return nil
	}
}

// foreignRoute adds somebody else's route with the hold's destination and metric.
func (w *Node) foreignRoute(_ testing.TB, h hold.Hold) func() error {
	s := *h.Spec.(*poolroute.Spec)
	w.pools[s] = false
	return func() error {
		if ours, there := w.pools[s]; !there || ours {
			return errors.New("it is gone")
		}
		return nil
	}
}

// foreignWay adds somebody else's route with the hold's destination and metric.
func (w *Node) foreignWay(_ testing.TB, h hold.Hold) func() error {
	return w.nodes.Foreign(h.Spec.(*noderoute.Spec))
}

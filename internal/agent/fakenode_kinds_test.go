package agent

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/berth-net/berth/internal/fault"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kinds/flows"
	"github.com/berth-net/berth/internal/kinds/kindtest"
	"github.com/berth-net/berth/internal/kinds/link"
	"github.com/berth-net/berth/internal/kinds/poolroute"
	"github.com/berth-net/berth/internal/kinds/table"
	"github.com/berth-net/berth/internal/stamp"
)

// The kinds of a node in memory pass what the real ones do.
func TestFakeNode(t *testing.T) {
	w := newFakeNode()
	plan := fault.New(1, fault.FailBefore)
	plan.Heal()
	k, err := newFakeKernel(w, plan, "aaaa")
	if err != nil {
		t.Fatal(err)
	}
	var last atomic.Uint32
	address := func() netip.Addr { n := last.Add(1); return netip.AddrFrom4([4]byte{10, 1, byte(n >> 8), byte(n)}) }
	for _, c := range []kindtest.Kind{
		{
			Kind: fakeLinks{k}.Kind(),
			Spec: func(t testing.TB, owner hold.ID) hold.Spec {
				p := w.pod(fmt.Sprintf("/run/netns/%s", owner))
				pod, host := link.MACs(owner)
				return &link.Spec{
					Name: stamp.Link("aaaa", owner), Alias: string(owner), Netns: p.ref, Ifname: "eth0", MTU: 1400,
					MAC: pod, HostMAC: host, Addresses: []netip.Addr{address()},
				}
			},
			Foreign: w.foreignLink,
		},
		{
			Kind:  fakeTable{k}.Kind(),
			Alone: true,
			Spec:  func(testing.TB, hold.ID) hold.Spec { return &table.Spec{Instance: "aaaa"} },
		},
		{
			Kind: withoutFind(fakeRoutes{k, 7}.Kind()), // a route cannot say who owns it
			Spec: func(testing.TB, hold.ID) hold.Spec {
				return &poolroute.Spec{CIDR: netip.PrefixFrom(address(), 32), Metric: 7}
			},
			Foreign: w.foreignRoute,
		},
		{
			Kind:   flows.Kind(fakeTracked{k}),
			Unseen: true,
			Spec:   func(testing.TB, hold.ID) hold.Spec { return &flows.Spec{Addresses: []netip.Addr{address()}} },
		},
	} {
		c.Fake, c.Snapshot = true, w.show
		t.Run(c.Kind.Name(), func(t *testing.T) { kindtest.Run(t, c) })
	}
}

func withoutFind(k hold.Kind) hold.Kind {
	k.Find = nil
	return k
}

// show is all that holds can leave behind.
func (w *fakeNode) show() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	text := fmt.Sprintf("table %v\n", w.table)
	for _, name := range slices.Sorted(maps.Keys(w.links)) {
		l := w.links[name]
		text += fmt.Sprintf("%+v in %s: %+v\n", l.show(), l.pod.ref, l.end)
	}
	for _, a := range slices.SortedFunc(maps.Keys(w.ways), netip.Addr.Compare) {
		text += fmt.Sprintf("route %s dev %s\n", a, w.ways[a].name)
	}
	return text + fmt.Sprint(w.flows, w.pools)
}

// foreignLink is somebody else's interface of the wanted name in the pod.
func (w *fakeNode) foreignLink(_ testing.TB, h hold.Hold) func() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	pod, err := w.find(linkOf(h).Netns)
	if err != nil {
		return func() error { return err }
	}
	other := &fakeLink{name: "other", pod: pod, ifname: "eth0"}
	pod.ends["eth0"] = other
	return func() error {
		if pod.ends["eth0"] != other {
			return errors.New("it is gone")
		}
		return nil
	}
}

// foreignRoute is somebody else's route of the same destination and metric.
func (w *fakeNode) foreignRoute(_ testing.TB, h hold.Hold) func() error {
	s := *h.Spec.(*poolroute.Spec)
	w.pools[s] = false
	return func() error {
		if ours, there := w.pools[s]; !there || ours {
			return errors.New("it is gone")
		}
		return nil
	}
}

package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/attachment"
	"github.com/berth-net/berth/internal/cni/netconf"
	"github.com/berth-net/berth/internal/fault"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/mode/modes"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/stamp"
)

// lender is an IPAM plugin in memory. Like host-local it refuses a second ADD for an interface that has an address. It has three addresses.
type lender struct {
	version.PluginDecoder
	t     testing.TB
	links func() ([]rtnl.Link, error) // of pods, on the node
	mu    sync.Mutex
	has   map[string]netip.Addr // by container
}

const lenderKeys = `"ipam":{"type":"lender"}`

func (l *lender) FindInPath(plugin string, _ []string) (string, error) { return plugin, nil }

func (l *lender) ExecPlugin(_ context.Context, _ string, _ []byte, environ []string) ([]byte, error) {
	get := func(key string) string {
		i := slices.IndexFunc(environ, func(e string) bool { return strings.HasPrefix(e, key+"=") })
		return strings.TrimPrefix(environ[i], key+"=")
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	container := get("CNI_CONTAINERID")
	has, had := l.has[container]
	switch get("CNI_COMMAND") {
	case "ADD":
		if had {
			return nil, types.NewError(100, "added already", has.String())
		}
		for a := netip.MustParseAddr("10.9.0.2"); a.Less(netip.MustParseAddr("10.9.0.5")); a = a.Next() {
			free := true
			for _, other := range l.has {
				free = free && other != a
			}
			if free {
				l.has[container] = a
				return fmt.Appendf(nil, `{"cniVersion":"1.0.0","ips":[{"address":"%s/24"}]}`, a), nil
			}
		}
		return nil, types.NewError(100, "no address is free", "")
	case "DEL":
		links, err := l.links()
		for _, link := range links {
			if of, _ := stamp.Parse(link.Alias); err == nil && had && slices.Contains(of.Addresses(), has.String()) {
				l.t.Errorf("%s is given back, and its pod %s still has link %s", has, container, link.Name)
			}
		}
		delete(l.has, container)
	}
	return nil, nil
}

// lends gives a rig the plugin.
func (r *rig) lends() *lender {
	l := &lender{t: r.t, has: map[string]netip.Addr{}}
	l.links = func() ([]rtnl.Link, error) { return r.node.OwnLinks() }
	r.plugins = l
	return l
}

// TestLentFaults is TestFaults for pods whose addresses an IPAM plugin gives: however each run ends, the plugin gets all of its addresses back, each
// when the pod's link is gone. TestLentFaults takes every third point, and begins with a random one of the first three.
func TestLentFaults(t *testing.T) {
	nettest.Need(t)
	pods := []*ns.Netns{nettest.Pod(t), nettest.Pod(t), nettest.Pod(t)}
	for _, p := range pods {
		nettest.Run(t, p, "ip link set lo up") // as an ADD does, for good
	}
	before := oracle(t, pods)
	points := fault.Each(t, "an IPAM plugin's addresses", fault.Modes(), 1+rand.IntN(3), 3, func(newPlan func() *fault.Plan) {
		f := newFaultRun(t, newPlan(), pods)
		l := f.lends()
		f.begin(true)
		if f.up {
			f.tryLent("a", 0)
			f.tryLent("a", 0) // completes what was begun
			f.tryLent("b", 1)
			f.delete("a")
			f.tryLent("c", 0)
			f.GC(t.Context(), api.GCRequest{Network: "net", Valid: []api.GCValid{{ContainerID: "b", Ifname: "eth0"}}}, now())
			f.settle()
		}
		f.end(before)
		if len(l.has) > 0 {
			t.Errorf("the plugin never got back %v", l.has)
		}
	})
	t.Logf("fault points covered: %d", points)
	if points < 50 {
		t.Errorf("only %d fault points: the plan does not reach the agent", points)
	}
}

// tryLent adds a pod with an address of the plugin, which may fail.
func (f *faultRun) tryLent(container string, pod int) {
	ctx, cancel := f.plan.Context(f.t.Context())
	defer cancel()
	ctx, cancel = context.WithTimeout(ctx, time.Second)
	defer cancel()
	_, _ = f.tryAddUntil(ctx, request(container, f.pods[pod], lenderKeys))
}

// An attachment that has its addresses alone, because the agent ended there, is in everybody's way neither after a restart nor to those who look at
// it. A repeated ADD completes it; DEL and GC release it.
func TestIncomplete(t *testing.T) {
	r := newRig(t)
	l := r.lends()
	r.begin()
	pod := nettest.Pod(t)
	for _, end := range []string{"ADD", "DEL", "GC"} {
		r.beginLent("c1", pod)
		r.restart()
		r.Sweep(t.Context())
		r.wantClean()
		all := r.List(api.Filter{})
		if len(all) != 1 || len(l.has) != 1 || len(all[0].Addresses) != 0 {
			t.Fatalf("the agent has %+v, and the plugin %v", all, l.has)
		}
		req := request("c1", pod, lenderKeys, `"prevResult":{"cniVersion":"1.1.0","ips":[{"address":"10.9.0.2/32"}]}`)
		wantError(t, r.Check(t.Context(), req, now()), 103, "is incomplete")
		switch end {
		case "ADD":
			_, err := r.tryAdd(request("c1", pod, lenderKeys, `"runtimeConfig":{"mac":"02:00:00:00:00:01"}`))
			wantError(t, err, 7, "this ADD asks for MAC 02:00:00:00:00:01")
			res := r.add(request("c1", pod, lenderKeys))
			if got := addresses(res); !slices.Equal(got, []netip.Addr{netip.MustParseAddr("10.9.0.2")}) {
				t.Errorf("the completed pod has %v", got)
			}
			prev, err := json.Marshal(res)
			must(t, err, r.Check(t.Context(), request("c1", pod, lenderKeys, `"prevResult":`+string(prev)), now()))
			r.wantClean()
			r.del("c1", true)
		case "DEL":
			r.del("c1", true)
		case "GC":
			_, err := r.GC(t.Context(), api.GCRequest{Network: "net"}, now())
			must(t, err)
		}
		nettest.Eventually(t, "nothing to be left", func() bool { return len(r.index.All()) == 0 })
		if len(l.has) > 0 {
			t.Errorf("after %s the plugin has %v", end, l.has)
		}
	}
}

// beginLent does the first half of an ADD: the engine takes what the plugin gives.
func (r *rig) beginLent(container string, pod *ns.Netns) {
	r.t.Helper()
	c, bad := netconf.Parse(request(container, pod, lenderKeys).Config)
	if bad != nil {
		r.t.Fatal(bad)
	}
	_, all := modes.List(r.core, r.node, r.ground, r.traffic)
	m, err := all.Of(c.Mode)
	must(r.t, err)
	rec := attachment.Record{
		Key: attachment.Key{Network: "net", ContainerID: container, Ifname: "eth0"}, Netns: pod.Ref(), Mode: c.Mode,
		Made: r.node.Boottime(), Started: r.node.Boottime(), Epoch: r.core.Epoch,
	}
	o, _, err := m.Plan(r.t.Context(), hold.NewID(), rec, c)
	must(r.t, err, r.core.Engine.Take(r.t.Context(), o))
}

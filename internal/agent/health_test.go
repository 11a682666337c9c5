package agent

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/config"
	"github.com/berth-net/berth/internal/fault"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/kinds/link"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/peers"
)

const healthPort = 9478

// annotations is what a cluster is told of a node's responder.
type annotations struct {
	mu    sync.Mutex
	addrs []netip.Addr
	fails error
}

func (n *annotations) set(_ context.Context, v4, v6 *netip.Addr) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.fails != nil {
		return n.fails
	}
	n.addrs = nil
	for _, a := range []*netip.Addr{v4, v6} {
		if a != nil {
			n.addrs = append(n.addrs, *a)
		}
	}
	return nil
}

func (n *annotations) get() []netip.Addr {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.addrs)
}

// keepHealth has the rig's agent keep a responder, and probe other nodes, until the function that it returns is called. The
// cluster says of this node what n says.
func (r *rig) keepHealth(n *annotations) (stop func()) {
	h := r.cluster.Nodes
	h.Node, h.Annotate = "self", n.set
	h.Health = config.Health{Enabled: true, Interval: time.Second, Port: healthPort}
	self := other("self", "1", "7")
	self.Health = n.get()
	h.Self(self)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); h.Keep(ctx) }()
	stopped := sync.OnceFunc(func() { cancel(); <-done })
	r.t.Cleanup(stopped) // before the rig's own cleanup
	return stopped
}

// responds waits until the rig's responder answers, and returns its addresses.
func (r *rig) responds() (addrs []string) {
	r.t.Helper()
	nettest.Eventually(r.t, "the responder to answer", func() bool {
		v := r.Health()
		addrs = v.Addresses
		return v.Error == "" && len(addrs) > 0
	})
	for _, a := range addrs {
		if said, err := hello(nil, a); said != "self\n" {
			r.t.Errorf("the responder at %s says %q, %v", a, said, err)
		}
	}
	return addrs
}

// hello asks the responder at an address.
func hello(at *ns.Netns, addr string) (said string, err error) {
	err = nettest.DoIn(at, func() error {
		c := http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
		res, err := c.Get("http://" + net.JoinHostPort(addr, fmt.Sprint(healthPort)) + "/hello")
		if err != nil {
			return err
		}
		defer res.Body.Close()
		raw, err := io.ReadAll(res.Body)
		said = string(raw)
		return err
	})
	return said, err
}

// The responder is attached as a pod is, and no pod: it has addresses of the pool, pods reach it, audit and sweep know it, and a
// runtime's GC and a list of pods do not. The cluster is told its addresses. It keeps them when it is launched again, and for
// the next agent.
func TestResponder(t *testing.T) {
	segment(t)
	r := start(t)
	told := &annotations{fails: errors.New("the API server is away")}
	stop := r.keepHealth(told)
	was := r.responds()
	if len(was) != 2 || len(r.index.All()) != 0 {
		t.Errorf("addresses %v, attachments %v", was, r.index.All())
	}
	r.wantClean()
	for _, p := range r.Pools() {
		for _, c := range p.CIDRs {
			if c.Used != 1 {
				t.Errorf("of %s, %d addresses are used", c.CIDR, c.Used)
			}
		}
	}
	pod := nettest.Pod(t)
	r.add(request("c1", pod))
	for _, a := range was {
		if said, err := hello(pod, a); said != "self\n" {
			t.Errorf("to a pod, the responder at %s says %q, %v", a, said, err)
		}
	}
	if _, err := r.GC(t.Context(), api.GCRequest{Network: "net"}, now()); err != nil {
		t.Error(err)
	}
	r.Sweep(t.Context())
	r.responds()
	told.mu.Lock()
	told.fails = nil
	told.mu.Unlock()
	nettest.Eventually(t, "the cluster to be told", func() bool { return slices.Equal(texts(told.get()), was) })

	for _, harm := range []struct {
		what string
		do   func()
	}{
		{"released", func() { must(t, r.core.Engine.Release(t.Context(), []hold.ID{r.responder()})) }},
		{"without addresses", func() { r.inResponder("ip addr flush dev eth0") }},
		{"without a link", func() { r.inResponder("ip link del eth0") }},
	} {
		launched := r.responder()
		harm.do()
		nettest.Eventually(t, "another responder than the one "+harm.what, func() bool { id := r.responder(); return id != "" && id != launched })
		if now := r.responds(); !slices.Equal(now, was) {
			t.Errorf("%s: the responder has %v, and had %v", harm.what, now, was)
		}
		r.wantClean()
	}

	for what, next := range map[string]func(){"restart": func() {}, "reboot": func() { r.boots, r.booted = r.boots+1, r.now().Started }} {
		stop()
		r.close()
		next()
		r.bringUp()
		stop = r.keepHealth(&annotations{}) // the ledger says it
		if now := r.responds(); !slices.Equal(now, was) {
			t.Errorf("%s: the responder has %v, and had %v", what, now, was)
		}
		r.wantClean()
	}
	stop()
}

func texts(addrs []netip.Addr) (all []string) {
	for _, a := range addrs {
		all = append(all, a.String())
	}
	return all
}

// responder returns the owner of the responder's link; "": there is none.
func (r *rig) responder() hold.ID {
	id, _ := r.core.Ledger.Holder(hold.Name{Space: "agent", Name: "health/responder"})
	return id
}

// inResponder runs a command in the responder's network namespace.
func (r *rig) inResponder(command string) {
	r.t.Helper()
	o, ok := r.core.Ledger.Owner(r.responder())
	if !ok {
		r.t.Fatal("there is no responder")
	}
	h, _ := o.Find(link.KindName)
	n, err := h.Spec.(*link.Spec).Netns.Open()
	must(r.t, err)
	defer n.Close()
	nettest.Run(r.t, n, command)
}

// tells returns annotations that name addresses.
func tells(addrs ...string) *annotations {
	n := &annotations{}
	for _, a := range addrs {
		n.addrs = append(n.addrs, netip.MustParseAddr(a))
	}
	return n
}

// A node that has no ledger any more asks for the addresses that the cluster was told, also while all addresses rest because the
// ledger was lost. If somebody has these addresses, or they are of no pool, it gets others.
func TestResponderAsksForItsAddresses(t *testing.T) {
	segment(t)
	r := start(t)
	r.cooldown = time.Hour
	r.restart()
	taken, free := r.add(request("c1", nettest.Pod(t))), []string{"10.88.0.77", "fd00:88::77"}
	for _, c := range []struct {
		told []string
		want func([]string) bool
	}{
		{free, func(got []string) bool { return slices.Equal(got, free) }},
		{texts(addresses(taken)), func(got []string) bool {
			return len(got) == 2 && !slices.Contains(got, free[0]) && got[0] != addresses(taken)[0].String()
		}},
		{[]string{"10.99.0.1", "fd00:88::78"}, func(got []string) bool { return len(got) == 2 && got[1] == "fd00:88::78" }},
	} {
		told := tells(c.told...)
		stop := r.keepHealth(told)
		got := r.responds()
		if !c.want(got) {
			t.Errorf("the cluster was told %v, and the responder has %v", c.told, got)
		}
		nettest.Eventually(t, "the cluster to be told", func() bool { return slices.Equal(texts(told.get()), got) })
		stop()
		r.giveResponderBack()
		r.wantClean()
	}
	r.del("c1", true)
	told := tells(free...)
	told.addrs[0] = netip.MustParseAddr("10.88.0.88")
	stop := r.keepHealth(told)
	was := r.responds()
	link := r.linkOfResponder()
	stop()
	nettest.Eventually(t, "the link to end with its namespace", func() bool { return !r.hasLink(link) })
	r.lose(false)
	r.bringUp()
	defer r.keepHealth(told)()
	if now := r.responds(); !slices.Equal(now, was) {
		t.Errorf("the responder has %v, and had %v before the ledger was lost", now, was)
	}
	if _, err := r.tryAdd(request("c2", nettest.Pod(t))); err == nil {
		t.Error("a pod gets an address while all addresses rest")
	}
	r.wantClean()
}

// giveResponderBack releases the owner of the responder's addresses, with that of the link.
func (r *rig) giveResponderBack() {
	r.t.Helper()
	id, _ := r.core.Ledger.Holder(hold.Name{Space: "agent", Name: "health"})
	must(r.t, r.core.Engine.Release(r.t.Context(), []hold.ID{id}), r.core.Engine.Wait(r.t.Context(), id))
	if r.responder() != "" {
		r.t.Error("the link's owner outlives the addresses' one")
	}
}

// linkOfResponder returns the name of the node's end of the responder's link.
func (r *rig) linkOfResponder() string {
	o, _ := r.core.Ledger.Owner(r.responder())
	h, _ := o.Find(link.KindName)
	return h.Spec.(*link.Spec).Name
}

// The responder moves when its pool gets other CIDRs, and the former CIDRs are given back. A configuration that wants no
// responder gives back all that there is of it, and tells the cluster.
func TestResponderMovesAndGoes(t *testing.T) {
	segment(t)
	r := start(t)
	told := tells()
	stop := r.keepHealth(told)
	r.responds()
	c := *r.ground.Config()
	c.Pools = slices.Clone(c.Pools)
	next := []netip.Prefix{given.Leases[0].CIDR, given.Leases[1].CIDR}
	c.Pools[0].CIDRs = next
	must(t, r.ground.Reload(t.Context(), &c))
	nettest.Eventually(t, "the responder to have addresses of the new CIDRs", func() bool {
		got := told.get()
		return len(got) == 2 && next[0].Contains(got[0]) && next[1].Contains(got[1])
	})
	r.responds()
	r.Sweep(t.Context())
	if cidrs := r.ground.Prefixes(); len(cidrs) != 2 {
		t.Errorf("the former CIDRs stay: %v", cidrs)
	}
	r.wantClean()
	stop()
	r.cluster.Nodes.Enabled = false
	self := other("self", "1", "7")
	self.Health = told.get()
	r.cluster.Nodes.Self(self)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); r.cluster.Nodes.Keep(ctx) }()
	nettest.Eventually(t, "the responder to be given back", func() bool {
		_, held := r.core.Ledger.Holder(hold.Name{Space: "agent", Name: "health"})
		return !held && r.responder() == "" && len(told.get()) == 0
	})
	cancel()
	<-done
	if h := r.Health(); h.Enabled || len(h.Probes) > 0 {
		t.Errorf("the agent says %+v", h)
	}
	r.wantClean()
}

// The agent is killed at each step of a launch that finds what another killed agent has left. The next one's responder has the
// same addresses, and nothing is left of the others.
func TestResponderOfKilledAgents(t *testing.T) {
	segment(t)
	before := oracle(t, nil)
	points := fault.Each(t, "a launch", []fault.Mode{fault.KillBefore, fault.KillAfter}, 1, 1, func(newPlan func() *fault.Plan) {
		f := newFaultRun(t, newPlan(), nil)
		f.begin(false)
		told := tells()
		stop := f.keepHealth(told)
		was := f.responds()
		stop()
		f.close()
		f.begin(true)
		if f.up {
			stop = f.keepHealth(told)
			nettest.Eventually(t, "the agent to be killed or its responder to answer", func() bool { return f.plan.IsDead() || f.Health().Error == "" })
			stop()
		}
		f.plan.Heal()
		f.close()
		f.begin(false)
		stop = f.keepHealth(tells())
		if now := f.responds(); !slices.Equal(now, was) {
			t.Errorf("the responder has %v, and had %v", now, was)
		}
		f.wantClean()
		stop()
		f.giveResponderBack()
		f.end(before)
	})
	if t.Logf("killed at %d points", points); points < 10 {
		t.Errorf("only %d points: the plan does not reach the launch", points)
	}
}

// farNode makes another node, n2, on the node's segment, whose pods have the CIDRs of the number 2. Its responder is a
// program that answers with what says returns.
func farNode(t *testing.T, says func() string) (at *ns.Netns, n peers.Node) {
	t.Helper()
	at = nettest.Pod(t)
	nettest.Run(t, nil, "ip link add to2 type veth peer name eth0 netns "+filepath.Base(at.Ref().Path))
	t.Cleanup(func() { nettest.Run(t, nil, "ip link del to2") })
	for _, c := range []string{
		"ip link set lo up", "ip link set eth0 up", "ip addr add 198.51.100.2/24 dev eth0", "ip addr add 2001:db8:2::2/64 dev eth0 nodad",
		"ip addr add 10.244.2.7/32 dev lo", "ip addr add fd00:244:2::7/128 dev lo nodad",
		"ip route add 10.88.0.0/24 via 198.51.100.1", "ip route add fd00:88::/64 via 2001:db8:2::1",
	} {
		nettest.Run(t, at, c)
	}
	for _, c := range []string{
		"ip link set to2 addrgenmode none", "ip link set to2 up", "ip addr add 198.51.100.1/24 dev to2", "ip addr add 2001:db8:2::1/64 dev to2 nodad",
		"ip addr add fe80::fe/64 dev to2 nodad", // from which a router asks for neighbours
	} {
		nettest.Run(t, nil, c)
	}
	nettest.Accept(t, at, "tcp", fmt.Sprintf(":%d", healthPort), func(c net.Conn) {
		defer c.Close()
		if _, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
			fmt.Fprintf(c, "HTTP/1.0 200 OK\r\n\r\n%s\n", says())
		}
	})
	n = other("n2", "2", "2")
	n.Addresses = []netip.Addr{netip.MustParseAddr("198.51.100.2"), netip.MustParseAddr("2001:db8:2::2")}
	n.Health = []netip.Addr{netip.MustParseAddr("10.244.2.7"), netip.MustParseAddr("fd00:244:2::7")}
	return at, n
}

// The agent reaches another node's responder and the node itself, by both families. It says why it does not: nobody
// answers, somebody else does, or the node is out of reach. A node that goes is not probed any more.
func TestProbesOfOtherNodes(t *testing.T) {
	segment(t)
	r := start(t)
	var name atomic.Value
	name.Store("n2")
	at, n2 := farNode(t, func() string { return name.Load().(string) })
	defer r.keepPeers()()
	r.cluster.Peers.All([]peers.Node{n2})
	told := tells()
	defer r.keepHealth(told)()
	r.cluster.Nodes.All([]peers.Node{n2})
	want := func(what string, is func(p api.HealthProbe) bool) {
		t.Helper()
		var h api.ClusterHealth
		for end := time.Now().Add(nettest.Deadline); ; time.Sleep(20 * time.Millisecond) {
			h = r.Health()
			if len(h.Probes) == 4 && !slices.ContainsFunc(h.Probes, func(p api.HealthProbe) bool { return p.Tried.IsZero() || !is(p) }) {
				break
			}
			if time.Now().After(end) {
				t.Fatalf("%s: %+v", what, h)
			}
		}
	}
	well := func(p api.HealthProbe) bool { return p.Reachable && p.Latency > 0 && p.Failures == 0 && p.Error == "" }
	want("all is well", well)
	name.Store("n3")
	want("another node answers", func(p api.HealthProbe) bool {
		return p.Path == api.PathNode && well(p) || p.Path == api.PathPod && !p.Reachable && strings.Contains(p.Error, `somebody else answers there: 200 OK, "n3"`)
	})
	name.Store("n2")
	nettest.Run(t, at, "ip link set eth0 down")
	want("the node is cut off", func(p api.HealthProbe) bool {
		return !p.Reachable && p.Failures > 1 && p.Error != "" && !p.Answered.IsZero()
	})
	nettest.Run(t, at, "ip link set eth0 up")
	for _, c := range []string{"ip addr add 2001:db8:2::2/64 dev eth0 nodad", "ip route add 10.88.0.0/24 via 198.51.100.1", "ip route add fd00:88::/64 via 2001:db8:2::1"} {
		nettest.Run(t, at, c) // which went with the link
	}
	want("all is well again", well)
	n2.Health = n2.Health[:1]
	r.cluster.Nodes.Put(n2)
	if h := r.Health(); len(h.Probes) != 3 {
		t.Errorf("the node tells one address of its responder, and there are %+v", h.Probes)
	}
	r.cluster.Nodes.Drop("n2")
	if h := r.Health(); len(h.Probes) != 0 {
		t.Errorf("the node is gone, and there are %+v", h.Probes)
	}
}

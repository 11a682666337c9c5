package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/config"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/kinds/link"
	"github.com/berth-net/berth/internal/nettest"
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

	stop()
	r.restart()
	stop = r.keepHealth(&annotations{}) // the ledger says it
	if now := r.responds(); !slices.Equal(now, was) {
		t.Errorf("the next agent's responder has %v, and the last one's had %v", now, was)
	}
	r.wantClean()
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

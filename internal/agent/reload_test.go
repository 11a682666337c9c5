package agent

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/berth-net/berth/internal/attachment"
	"github.com/berth-net/berth/internal/attachment/verbs"
	"github.com/berth-net/berth/internal/cni"
	"github.com/berth-net/berth/internal/cni/netconf"
	"github.com/berth-net/berth/internal/ground"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel/nft"
	"github.com/berth-net/berth/internal/kinds"
	"github.com/berth-net/berth/internal/kinds/poolroute"
	"github.com/berth-net/berth/internal/mode"
	"github.com/berth-net/berth/internal/mode/modes"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/turn"
)

// The log says that a new configuration is refused if no part of the configuration is in force. A
// configuration that only failed in part is in force all the same.
func TestSettle(t *testing.T) {
	r := newRig(t, "default=10.88.0.0/24")
	b := newBreaker()
	r.decorate = b.decorate
	o, err := r.options()
	must(t, err)
	var said bytes.Buffer
	o.Log = slog.New(slog.NewTextHandler(&said, nil))
	r.Agent, err = Open(o)
	must(t, err)
	must(t, r.Restore(t.Context()))
	defer func() { r.releaseAll(); r.remove(context.Background()); r.close() }()
	r.add(request("c", nettest.Pod(t)))

	for _, step := range []struct {
		pool    string
		workers int
		fail    bool
		inForce bool
		want    string
	}{
		{"default=10.88.0.0/25", 64, false, false, "refuses the new configuration, and keeps"},
		{"default=10.89.0.0/24", 64, true, true, "in force, except for what failed"},
		{"default=10.89.0.0/24", 64, false, true, "the new configuration is in force\""},
		{"default=10.89.0.0/24", 65, false, true, "berthd reads only when it starts\" keys=[concurrency]"},
	} {
		said.Reset()
		r.pools = []string{step.pool}
		b.set(step.fail, "acquire", "poolroute", "")
		c, err := r.conf()
		must(t, err)
		c.Concurrency = step.workers
		got := r.ground.Settle(t.Context(), c)
		if in := r.ground.Config() == c; got != step.inForce || in != got || !strings.Contains(said.String(), step.want) {
			t.Errorf("%s: %t, in force %t; it says\n%s", step.pool, got, in, said.String())
		}
		if st, err := r.Status(t.Context(), ""); err != nil && !step.fail || strings.Contains(st.Refused, "which is still in use") == step.inForce {
			t.Errorf("%s: the status says that it is refused: %q, %v", step.pool, st.Refused, err)
		}
		if strings.Contains(said.String(), "keys") != (step.workers != 64) {
			t.Errorf("%s: what waits for a start:\n%s", step.pool, said.String())
		}
	}
}

// beforePlan is a mode that calls `do` each time before the mode claims addresses.
type beforePlan struct {
	mode.Finder
	do func()
}

func (m beforePlan) Plan(ctx context.Context, id hold.ID, r attachment.Record, c *netconf.Conf) (hold.Owner, func(), error) {
	m.do()
	return m.Finder.Plan(ctx, id, r, c)
}

// An ADD that names no pool means the default pool, also if a reload takes that pool away after
// the ADD has chosen the pool, and before the ADD has an address. If reloads keep doing so, ADD
// says "try again". An ADD that names the pool hears that there is none.
func TestReloadTakesTheDefaultPoolFromAnADD(t *testing.T) {
	for _, step := range []struct {
		what    string
		reloads int
		keys    []string
		code    uint // 0: success
		says    string
	}{
		{"one reload", 1, nil, 0, ""},
		{"reloads without end", 100, nil, cni.CodeTryAgain, "the default pool changes"},
		{"a pool by its name", 1, []string{`"pool":"default"`}, cni.CodeConfig, "unknown pool"},
	} {
		t.Run(step.what, func(t *testing.T) {
			r := start(t)
			routed, _ := modes.List(r.core, r.node, r.ground, r.traffic)
			reloads := 0
			m := beforePlan{routed, func() {
				if reloads++; reloads > step.reloads {
					return
				}
				r.pools = []string{[]string{"even=10.88.0.0/24,fd00:88::/64", "odd=10.88.0.0/24,fd00:88::/64"}[reloads%2]}
				c, err := r.conf()
				must(t, err)
				must(t, r.ground.Reload(t.Context(), c))
			}}
			r.Agent.Verbs = verbs.New(&r.core.Core, r.index, r.drain, r.ground, mode.Modes{m}, r.networks, r.node.OpenNetns)
			_, err := r.tryAdd(request("c", nettest.Pod(t), step.keys...))
			if step.code != 0 {
				wantError(t, err, step.code, step.says)
			} else if err != nil {
				t.Error(err)
			}
		})
	}
}

// brokenTable fails to take a ruleset while broken is set.
type brokenTable struct {
	kinds.Table
	broken atomic.Bool
}

func (b *brokenTable) SetRuleset(r nft.Ruleset) error {
	if b.broken.Load() {
		return errors.New("no buffer space available")
	}
	return b.Table.SetRuleset(r)
}

// A reload brings a pool, and the table does not take the rules for it. No pod gets an address of the pool before
// the table has these rules: without masquerade the pod's packets would leave with the pod's address.
func TestNewPoolWaitsForItsRules(t *testing.T) {
	r := start(t)
	b := &brokenTable{Table: r.node.Table}
	r.node.Table = b
	r.pools = append(r.pools, "extra=10.89.0.0/24")
	c, err := r.conf()
	must(t, err)
	b.broken.Store(true)
	if err := r.ground.Reload(t.Context(), c); err == nil {
		t.Error("the reload says that all is well")
	}
	pod := nettest.Pod(t)
	_, err = r.tryAdd(request("c", pod, `"pool":"extra"`))
	wantError(t, err, cni.CodeTryAgain, "no buffer space")
	r.ground.Pools.Rinsed(r.ground.Pools.Due(r.core.Clock.Now()))
	b.broken.Store(false)
	r.Sweep(t.Context())
	if !r.ground.Pools.Tainted("extra") { // the table has noted nothing of the pool until now
		t.Error("the pool is not tainted")
	}
	r.add(request("c", pod, `"pool":"extra"`))
}

// asked is a table that counts the questions for strays among a pod's addresses.
type asked struct {
	kinds.Table
	strays atomic.Int32
}

func (a *asked) Strays(addrs []netip.Addr) ([]netip.Addr, bool, error) {
	if len(addrs) > 0 {
		a.strays.Add(1)
	}
	return a.Table.Strays(addrs)
}

// An ADD asks whether others have reached its addresses when it chooses them, and again when the pod has its routes.
func TestADDAsksForStraysTwice(t *testing.T) {
	r := start(t)
	a := &asked{Table: r.node.Table}
	r.node.Table = a
	if r.add(request("c", nettest.Pod(t))); a.strays.Load() != 2 {
		t.Errorf("an ADD asks %d times", a.strays.Load())
	}
}

// An ADD comes while a reload is taking what pods of a new pool need. The ADD waits, also if it has chosen the pool
// and its address comes out of the new CIDR.
func TestADDWaitsForNewAddresses(t *testing.T) {
	for name, pools := range map[string][]string{
		"a new pool":        {"default=10.88.0.0/24,fd00:88::/64", "extra=10.89.0.0/24"},
		"a CIDR of a known": {"extra=10.90.0.0/32,10.89.0.0/24", "default=10.88.0.0/24,fd00:88::/64"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, "default=10.88.0.0/24,fd00:88::/64", "extra=10.90.0.0/32")
			heal := make(chan struct{})
			r.decorate = hangingCIDRs("10.89.", heal)
			r.begin()
			r.add(request("first", nettest.Pod(t), `"pool":"extra"`))
			r.pools = pools
			c, err := r.conf()
			must(t, err)
			reloaded := make(chan error, 1)
			go func() { reloaded <- r.ground.Reload(t.Context(), c) }()
			nettest.Eventually(t, "the reload to be in force", func() bool { return r.ground.Lacking("extra") != nil })
			added, left, entered := make(chan error, 1), make(chan int, 1), make(chan int, 1)
			place := turn.Place{ // the ADD gives its place to other requests, and the reload goes on only then
				Leave: func() (func(), bool) { left <- 1; return func() {}, true },
				Enter: func(context.Context) error { entered <- 1; return nil },
			}
			go func() {
				_, err := r.Add(turn.WithPlace(t.Context(), place), request("c", nettest.Pod(t), `"pool":"extra"`), now())
				added <- err
			}()
			<-left
			close(heal)
			must(t, <-reloaded)
			must(t, <-added)
			<-entered
		})
	}
}

// A reload could not take the route of a new pool, and the next one gives the pool another name. No pod gets an
// address of the pool before the agent has the route.
func TestRenamedPoolWaitsForItsRoute(t *testing.T) {
	r := newRig(t, "default=10.88.0.0/24,fd00:88::/64")
	taking, heal := make(chan error), make(chan int)
	r.decorate = change(poolroute.KindName, func(k *hold.Kind) {
		acquire := k.Acquire
		k.Acquire = func(ctx context.Context, h hold.Hold) error {
			if strings.HasPrefix(h.Spec.(*poolroute.Spec).CIDR.String(), "10.89.") {
				select {
				case err := <-taking:
					return err
				case <-heal:
				}
			}
			return acquire(ctx, h)
		}
	})
	r.begin()
	reload := func(pool string) <-chan error {
		r.pools = append(r.pools[:1], pool+"=10.89.0.0/24")
		c, err := r.conf()
		must(t, err)
		reloaded := make(chan error, 1)
		go func() { reloaded <- r.ground.Reload(t.Context(), c) }()
		return reloaded
	}
	first := reload("extra")
	taking <- errors.New("no buffer space available")
	if err := <-first; err == nil {
		t.Error("the reload says that all is well")
	}
	second := reload("renamed")
	nettest.Eventually(t, "the reload to be in force", func() bool {
		_, err := r.ground.Pool("renamed")
		return err == nil
	})
	if r.ground.Lacking("renamed") == nil {
		t.Error("the pool is equipped without its route")
	}
	close(heal)
	must(t, <-second)
	r.add(request("c", nettest.Pod(t), `"pool":"renamed"`))
}

// A pool's route, and with it the lease of a block, waits for the pods that have addresses of its CIDR, and no pod goes with it.
func TestRouteWaitsForItsPods(t *testing.T) {
	r := newRig(t, "default=10.88.0.0/24,fd00:88::/64")
	r.begin()
	r.add(request("c", nettest.Pod(t)))
	var routes []hold.ID
	for _, cidr := range r.ground.CIDRs("default") {
		id, held := r.core.Ledger.Holder(ground.CIDRName(cidr))
		if !held {
			t.Fatalf("nobody has %s", cidr)
		}
		routes = append(routes, id)
	}
	must(t, r.core.Engine.Release(t.Context(), routes))
	r.wantAttached("c")
	for _, id := range routes {
		o, _ := r.core.Ledger.Owner(id)
		if o.ID == "" || o.Wanted() {
			t.Errorf("%s is %v: want it to be releasing, and to wait", id, o)
		}
		must(t, r.core.Engine.Verify(t.Context(), o))
	}
	r.del("c", true)
	must(t, r.core.Engine.Wait(t.Context(), routes...))
	for _, id := range routes {
		if _, left := r.core.Ledger.Owner(id); left {
			t.Errorf("%s is left, and no pod", id)
		}
	}
}

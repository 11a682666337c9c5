package agent

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/berth-net/berth/internal/attachment"
	"github.com/berth-net/berth/internal/config"
	"github.com/berth-net/berth/internal/engine"
	"github.com/berth-net/berth/internal/fault"
	"github.com/berth-net/berth/internal/ground"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel/nft"
	"github.com/berth-net/berth/internal/kinds"
	"github.com/berth-net/berth/internal/kinds/hostports"
	"github.com/berth-net/berth/internal/kinds/poolroute"
	"github.com/berth-net/berth/internal/mode/modes"
	"github.com/berth-net/berth/internal/nettest"
)

// hangingCIDRs lets each Acquire of a route hang until heal is closed, whatever the context says, if
// the text of the route's CIDR begins with `prefix`.
func hangingCIDRs(prefix string, heal <-chan struct{}) func(engine.Ledger, hold.Kinds) (engine.Ledger, hold.Kinds) {
	return change(poolroute.KindName, func(k *hold.Kind) {
		acquire := k.Acquire
		k.Acquire = func(ctx context.Context, h hold.Hold) error {
			if strings.HasPrefix(h.Spec.(*poolroute.Spec).CIDR.String(), prefix) {
				<-heal
			}
			return acquire(ctx, h)
		}
	})
}

// The agent cannot take the route of a new pool, because the kernel does not answer. This keeps
// no pod of another pool from being deleted, neither at a start nor at a reload. A reload that hangs
// so ends when its agent ends.
func TestHangingPoolKeepsNoDeletion(t *testing.T) {
	for name, live := range map[string]func(*rig, Options){
		"at the start": func(r *rig, o Options) { r.live(o, nil) },
		"at a reload": func(r *rig, o Options) {
			c := *o.Config
			r.pools = r.pools[:1]
			var err error
			o.Config, err = r.conf()
			must(r.t, err)
			reload := make(chan config.Reading, 1)
			r.live(o, reload)
			r.serving()
			reload <- config.Reading{Config: &c}
			nettest.Eventually(r.t, "the configuration is read", func() bool { return len(reload) == 0 })
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.begin()
			r.add(request("c", nettest.Pod(t)))
			r.close()
			r.pools = append(r.pools, "extra=10.89.0.0/24,10.89.1.0/24,10.89.2.0/24,10.89.3.0/24") // no route waits for another
			o, err := r.options()
			must(t, err)
			heal := make(chan struct{})
			o.Decorate = hangingCIDRs("10.89.", heal)
			t.Cleanup(func() { close(heal) }) // when the agent has ended
			live(r, o)
			c := r.serving()
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			if _, err := c.Delete(ctx, key("c"), false); err != nil {
				t.Errorf("DEL: %v", err)
			}
		})
	}
}

// However many routes of CIDRs the agent cannot look at, a sweep and a start wait for all these
// routes no longer than for one route.
func TestHangingRoutesAreLookedAtTogether(t *testing.T) {
	r := newRig(t, "default=10.88.0.0/24,10.88.1.0/24,10.88.2.0/24,fd00:88::/64")
	var hangs atomic.Bool
	r.decorate = change(poolroute.KindName, func(k *hold.Kind) {
		verify := k.Verify
		k.Verify = func(ctx context.Context, look *hold.Look, hs []hold.Hold) []error {
			if hangs.Load() {
				<-ctx.Done()
			}
			return verify(ctx, look, hs)
		}
	})
	r.begin()
	hangs.Store(true)
	r.core.Doubt.Store(true)
	ctx, cancel := context.WithTimeout(t.Context(), 2*ground.Holding)
	defer cancel()
	if err := r.ground.Hold(ctx); !errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil {
		t.Errorf("%v; its own time: %v", err, ctx.Err())
	}
	hangs.Store(false)
	nettest.Eventually(t, "the routes answer", func() bool { return r.ground.Hold(t.Context()) == nil })
}

// The agent attaches no pod to a pool whose route is not there, also when the next sweep finds an
// owner of the route in the ledger. The agent may still try to take the owner's route, or may have
// failed to take it and to promise the owner's release.
func TestPoolWithoutItsRoute(t *testing.T) {
	t.Run("hangs", func(t *testing.T) {
		r := newRig(t, "default=10.88.0.0/24,fd00:88::/64", "extra=10.89.0.0/24")
		heal := make(chan struct{})
		r.decorate = hangingCIDRs("10.89.", heal)
		r.begin()
		r.Sweep(t.Context())
		if err := r.ground.Lacking("extra"); err == nil {
			t.Error("the pool is said to be ready while its route is being taken")
		}
		if err := r.ground.Lacking("default"); err != nil {
			t.Errorf("the other pool: %v", err)
		}
		close(heal)
		nettest.Eventually(t, "the pool is ready", func() bool { r.Sweep(t.Context()); return r.ground.Lacking("extra") == nil })
	})
	t.Run("failed", func(t *testing.T) {
		r := newRig(t)
		l := &fault.Disk{}
		r.decorate = func(in engine.Ledger, ks hold.Kinds) (engine.Ledger, hold.Kinds) {
			l.Ledger = in
			_, ks = change(poolroute.KindName, func(k *hold.Kind) {
				acquire := k.Acquire
				k.Acquire = func(ctx context.Context, h hold.Hold) error {
					if h.Spec.(*poolroute.Spec).CIDR.String() == "10.89.0.0/24" {
						l.Fill(1)
						return errors.New("acquire is broken")
					}
					return acquire(ctx, h)
				}
			})(in, ks)
			return l, ks
		}
		r.begin()
		r.pools = append(r.pools, "extra=10.89.0.0/24")
		c, err := r.conf()
		must(t, err)
		if err := r.ground.Reload(t.Context(), c); err == nil {
			t.Error("the new configuration is said to be in force")
		}
		r.Sweep(t.Context())
		if err := r.ground.Lacking("extra"); err == nil {
			t.Error("the pool is said to be ready, though its route could not be taken")
		}
		l.Clear()
	})
}

// The kernel was too slow for an agent that starts. The agent takes soon what pods need, and does not leave it to the next
// sweep.
func TestHeldSoon(t *testing.T) {
	r := newRig(t)
	r.begin()
	r.close()
	r.pools = append(r.pools, "extra=10.89.0.0/24")
	o, err := r.options()
	must(t, err)
	o.Config.SweepInterval = time.Hour
	var tries atomic.Int32
	o.Decorate = change(poolroute.KindName, func(k *hold.Kind) {
		acquire := k.Acquire
		k.Acquire = func(ctx context.Context, h hold.Hold) error {
			if h.Spec.(*poolroute.Spec).CIDR.String() == "10.89.0.0/24" && tries.Add(1) <= 2 {
				return errors.New("too slow")
			}
			return acquire(ctx, h)
		}
	})
	r.live(o, nil)
	c := r.serving()
	pod := nettest.Pod(t)
	nettest.Eventually(t, "the agent to attach", func() bool {
		_, err := c.Add(t.Context(), request("c", pod, `"pool":"extra"`))
		return err == nil
	})
	_, err = c.Delete(t.Context(), key("c"), true)
	must(t, err)
}

// hangingTable is a table whose writing hangs until heal is closed.
type hangingTable struct {
	kinds.Table
	heal <-chan struct{}
	told atomic.Pointer[nft.Ruleset] // the ruleset that was written last
}

func (h *hangingTable) SetRuleset(r nft.Ruleset) error {
	<-h.heal
	h.told.Store(&r)
	return h.Table.SetRuleset(r)
}

func (h *hangingTable) Retry() error { <-h.heal; return h.Table.Retry() }

// The agent cannot write its table, because the kernel does not answer. A start does the queued
// deletions all the same, a sweep ends, and a new configuration comes into force: the agent
// writes the configuration's table when the kernel answers.
func TestHangingTableKeepsNothingElse(t *testing.T) {
	r := start(t)
	r.add(request("c", nettest.Pod(t)))
	r.enqueue(r.deletion("c", ""))
	r.close()
	must(t, r.open())
	heal := make(chan struct{})
	hanging := &hangingTable{Table: r.node.Table, heal: heal}
	r.node.Table = hanging
	ctx, cancel := context.WithTimeout(t.Context(), 4*ground.Holding)
	defer cancel()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if _, err := r.resume(ctx); err != nil {
			t.Errorf("start: %v", err)
		}
		r.Sweep(ctx)
		r.pools = []string{"default=10.88.0.0/24,fd00:88::/64", "extra=10.89.0.0/24"}
		c, err := r.conf()
		must(t, err)
		if err := r.ground.Reload(ctx, c); err == nil {
			t.Error("the new configuration is said to be in force")
		}
	}()
	select {
	case <-ended:
	case <-time.After(8 * ground.Holding):
		close(heal)
		t.Fatal("it waits for the table")
	}
	if n := r.queued(); n > 0 || ctx.Err() != nil {
		t.Errorf("%d deletions wait; time: %v", n, ctx.Err())
	}
	close(heal)
	nettest.Eventually(t, "the table has the new pool", func() bool {
		r.Sweep(t.Context())
		told := hanging.told.Load()
		return told != nil && len(told.Pools) == 3 && len(r.findings()) == 0
	})
}

// hangingPorts are host ports that cannot be read until heal is closed.
type hangingPorts struct {
	kinds.Ports
	heal <-chan struct{}
}

func (h *hangingPorts) Mapped() (map[hold.ID]*hostports.Spec, error) {
	<-h.heal
	return h.Ports.Mapped()
}

// If the agent cannot read its table, it still adopts and cuts off a pod that no ledger knows.
// It releases the pod's host ports when the kernel answers.
func TestHangingTableKeepsNoAdoption(t *testing.T) {
	r := start(t)
	heal := make(chan struct{})
	defer close(heal)
	r.node.Ports = &hangingPorts{r.node.Ports, heal}
	finder, _ := modes.List(r.core, r.node, r.ground, r.traffic)
	adopted := make(chan hold.Owner, 1)
	go func() { adopted <- finder.Adopt(hold.NewID(), attachment.Record{}, nil, nil) }()
	select {
	case o := <-adopted:
		if _, holds := o.Find(hostports.KindName); !holds {
			t.Errorf("what is adopted holds no host ports: %v", o.Holds)
		}
	case <-time.After(nettest.Deadline):
		t.Fatal("it waits for the table")
	}
}

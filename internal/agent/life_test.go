package agent

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/daemon"
	"github.com/berth-net/berth/internal/engine"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/nettest"
)

// change returns a Decorate that changes one kind.
func change(kind string, f func(*hold.Kind)) func(engine.Ledger, hold.Kinds) (engine.Ledger, hold.Kinds) {
	return func(l engine.Ledger, ks hold.Kinds) (engine.Ledger, hold.Kinds) {
		for i := range ks {
			if ks[i].Name() == kind {
				f(&ks[i])
			}
		}
		return l, ks
	}
}

// An agent that cannot take the holds which the node needs detaches pods all the same. It
// attaches no pod until it has these holds.
func TestServesWithoutATable(t *testing.T) {
	r, b := startBreakable(t)
	pod := nettest.Pod(t)
	r.add(request("c", pod))
	r.core.Engine.Release(t.Context(), r.ground.Owners()) // so that the next agent has to take these holds anew
	r.core.Engine.Wait(t.Context(), r.ground.Owners()...)
	r.close()
	b.set(true, "acquire", "egress", "")
	r.bringUp()
	_, err := r.tryAdd(request("d", nettest.Pod(t)))
	wantError(t, err, 11, "acquire egress is broken")
	_, err = r.Status(t.Context(), "")
	wantError(t, err, 50, "acquire egress is broken")
	if d, known, err := r.Delete(t.Context(), key("c"), true, now()); err != nil || !known || d.Released != 1 || d.Owed != 0 {
		t.Errorf("DEL: %+v, %t, %v", d, known, err)
	}
	b.heal()
	r.Sweep(t.Context())
	r.add(request("d", pod))
	r.wantClean()
}

// The same for a pool's route that the ledger has, and that a restart could not take again
// (found by TestModel with a reboot).
func TestServesWithoutARoute(t *testing.T) {
	r, b := startBreakable(t)
	pod := nettest.Pod(t)
	r.add(request("c", pod))
	for _, family := range []string{"-4", "-6"} {
		nettest.Run(t, r.node.Here, "ip "+family+" route flush type unreachable")
	}
	r.close()
	b.set(true, "acquire", "poolroute", "")
	r.bringUp()
	for _, when := range []string{"after the start", "after a sweep"} {
		if _, err := r.tryAdd(request("d", nettest.Pod(t))); !isCode(err, 11) || !strings.Contains(err.Error(), "acquire poolroute is broken") {
			t.Errorf("ADD %s: %v", when, err)
		}
		r.Sweep(t.Context())
	}
	_, err := r.Status(t.Context(), "")
	wantError(t, err, 50, "acquire poolroute is broken")
	r.del("c", true)
	b.heal()
	r.Sweep(t.Context())
	r.add(request("d", pod))
	r.wantClean()
}

// An agent that is told to stop during its restore serves no request any more. Otherwise a
// queued deletion that the restore did not reach would be done only after the next pod's ADD
// (found by the kill loop of test/crash).
func TestToldToStopWhileItRestores(t *testing.T) {
	r := start(t)
	r.add(request("c", nettest.Pod(t)))
	r.close()
	ctx, stop := context.WithCancel(t.Context())
	o, err := r.options()
	must(t, err)
	var said bytes.Buffer
	o.Log = slog.New(slog.NewTextHandler(&said, nil))
	o.Decorate = change("egress", func(k *hold.Kind) {
		verify := k.Verify
		k.Verify = func(ctx context.Context, look *hold.Look, hs []hold.Hold) []error {
			stop()
			return verify(ctx, look, hs)
		}
	})
	if err := Run(ctx, o, nil); err != nil {
		t.Error(err)
	}
	if ctx.Err() == nil || strings.Contains(said.String(), "msg=serving") {
		t.Errorf("told to stop: %v; it says\n%s", ctx.Err(), said.String())
	}
	r.bringUp()
	r.wantAttached("c")
	r.wantClean()
}

// A refused removal must not have written a table for no groups: such a table would drop all packets
// of the node.
func TestRefusedRemovalChangesNothing(t *testing.T) {
	r := start(t)
	r.add(request("c", nettest.Pod(t)))
	before := nettest.Snapshot(t, nil).Only("nft")
	r.close()
	err := Remove(t.Context(), Options{Config: r.ground.Config(), Options: daemon.Options{Root: r.root, Log: slog.New(slog.DiscardHandler)}})
	if err == nil || !strings.Contains(err.Error(), "pods are attached (1)") {
		t.Errorf("Remove: %v, want that a pod is attached", err)
	}
	nettest.Same(t, before, nettest.Snapshot(t, nil).Only("nft"), "it changed the node")
	r.bringUp()
}

// A CIDR comes back into the configuration while the agent still releases the CIDR's former owner.
// In the end the CIDR has an owner.
func TestCIDRIsBackWhileItGoes(t *testing.T) {
	let := make(chan struct{})
	r := newRig(t, "default=10.88.0.0/24", "extra=10.89.0.0/24")
	r.decorate = change("poolroute", func(k *hold.Kind) {
		release := k.Release
		k.Release = func(ctx context.Context, hs []hold.Hold) []error { <-let; return release(ctx, hs) }
	})
	r.begin()
	reload := func(ctx context.Context, pools ...string) error {
		r.pools = pools
		c, err := r.conf()
		must(t, err)
		return r.ground.Reload(ctx, c)
	}
	must(t, reload(t.Context(), "default=10.88.0.0/24"))
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := reload(ctx, "default=10.88.0.0/24", "extra=10.89.0.0/24"); err == nil {
		t.Error("Reload is content with an owner that goes")
	}
	close(let)
	r.Sweep(t.Context())
	if routes := nettest.Snapshot(t, nil).Only("route").String(); !strings.Contains(routes, "10.89.0.0/24") {
		t.Errorf("the CIDR has no route:\n%s", routes)
	}
	r.wantClean()
}

// The answer to a repeated ADD is true of the node, and not only of the ledger: before the answer,
// the agent mends what the attachment lacks.
func TestRepeatedAddMends(t *testing.T) {
	r := start(t)
	pod, other := nettest.Pod(t), nettest.Pod(t)
	r.add(request("c", pod))
	r.add(request("d", other))
	nettest.Run(t, pod, "ip link del eth0")
	nettest.Ping(t, other, addresses(r.add(request("c", pod)))[0])
	r.wantClean()
}

func TestLateAddSparesALaterOne(t *testing.T) {
	r := start(t)
	early := now()
	r.add(request("c", nettest.Pod(t)))
	_, err := r.Add(t.Context(), request("c", nettest.Pod(t)), early)
	wantError(t, err, 11, "later ADD")
	if l := r.List(key("c")); len(l) != 1 || l[0].State != api.StateAttached {
		t.Errorf("the later one: %+v", l)
	}
}

func TestLostInstance(t *testing.T) {
	r := start(t)
	r.close()
	defer r.bringUp()
	raw, err := os.ReadFile(r.root.Instance())
	if err == nil {
		err = errors.Join(os.Remove(r.root.Instance()), os.Remove(r.root.Epoch()))
	}
	must(t, err)
	if err := r.open(); !errors.Is(err, daemon.ErrInstanceLost) {
		t.Errorf("opening: %v, want daemon.ErrInstanceLost", err)
	}
	must(t, os.WriteFile(r.root.Instance(), raw, 0o600))
}

// The marker has the instance id as well. If the id's file is gone or empty, the agent makes the file
// anew from the marker, and the pods stay, also if somebody has to rebuild the ledger, too.
func TestInstanceFromMarker(t *testing.T) {
	r := start(t)
	r.add(request("a", nettest.Pod(t)))
	was := r.core.Instance
	for _, ledger := range []bool{true, false} {
		r.close()
		if ledger {
			must(t, os.Truncate(r.root.Instance(), 0))
		} else {
			must(t, os.Remove(r.root.Instance()))
			must(t, os.Remove(r.root.Ledger()))
			if _, err := r.rebuild(); err != nil {
				t.Fatal(err)
			}
		}
		r.bringUp()
		raw, err := os.ReadFile(r.root.Instance())
		if err != nil || r.core.Instance != was || string(raw) != was+"\n" {
			t.Errorf("the instance was %s and is %s, in its file %q (%v)", was, r.core.Instance, raw, err)
		}
		if l := r.List(key("a")); len(l) != 1 || l[0].State != api.StateAttached {
			t.Errorf("the attachment: %+v", l)
		}
	}
}

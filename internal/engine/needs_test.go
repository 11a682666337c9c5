package engine_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/berth-net/berth/internal/engine"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/ledger"
)

// onto lets an owner need others.
func onto(o hold.Owner, needs ...hold.Owner) hold.Owner {
	for _, n := range needs {
		o.Needs = append(o.Needs, n.ID)
	}
	return o
}

// A pod needs an ENI and a lease. The release of either takes the pod with it, and the holds
// of both go after the holds of the pod.
func TestOwnerNeedsSeveral(t *testing.T) {
	for _, which := range []string{"eni", "lease"} {
		t.Run(which, func(t *testing.T) {
			n := newNode(t)
			eni, lease := owner("", "eni", "rule"), owner("", "lease", "lease")
			pod := onto(owner("", "pod", "wire", "rule"), eni, lease)
			take(t, n, eni)
			take(t, n, lease)
			take(t, n, pod)
			first, second := eni, lease
			if which == "lease" {
				first, second = lease, eni
			}
			release(t, n, first.ID)
			if o, ok := n.ledger.Owner(second.ID); !ok || !o.Wanted() {
				t.Errorf("what else the pod needed is %v", o)
			}
			log := n.world.done()
			mine := slices.Index(log, "release "+first.Holds[0].Spec.String())
			for _, h := range pod.Holds {
				if at := slices.Index(log, "release "+h.Spec.String()); at < 0 || at > mine {
					t.Errorf("%s goes after what it stands on: %q", h.Spec, log)
				}
			}
			release(t, n, second.ID)
			wantResidue(t, n, empty)
		})
	}
}

// A block that is revoked waits for its pods, if its kind says so. Until the last of them goes,
// no new pod gets the block, the block is not cut off, and the engine takes again what the
// block loses, also after a restart. The owners that the block needs wait with it.
func TestRevokedBlockStandsForItsPods(t *testing.T) {
	n := newNode(t)
	eni := owner("", "eni", "wire")
	block := onto(owner("", "block", "wire", "block", "rule"), eni)
	a, b := onto(owner("", "a", "wire"), block), onto(owner("", "b", "wire"), block)
	for _, o := range []hold.Owner{eni, block, a, b} {
		take(t, n, o)
	}
	must(t, n.Release(t.Context(), []hold.ID{eni.ID, block.ID}))
	stands := func(when string) {
		t.Helper()
		n.world.set(func() { delete(n.world.things, "rule "+string(block.ID)) })
		if rep, err := n.Sweep(t.Context()); err != nil {
			t.Errorf("%s: sweep: %v, %v", when, rep, err)
		}
		for _, o := range []hold.Owner{eni, block, a} {
			for _, h := range o.Holds {
				if !n.world.has(h) {
					t.Errorf("%s: %s is gone, or cut off", when, h.Spec)
				}
			}
		}
		if err := n.Take(t.Context(), onto(owner("", "c", "wire"), block)); !errors.Is(err, ledger.ErrNeeds) {
			t.Errorf("%s: a new pod on it: %v, want ErrNeeds", when, err)
		}
		if rep := n.Audit(t.Context()); len(rep.Findings) > 0 {
			t.Errorf("%s: audit: %v", when, rep.Findings)
		}
	}
	stands("revoked")
	n.restart()
	stands("after a restart")
	release(t, n, b.ID)
	stands("with one pod left")
	must(t, n.Release(t.Context(), []hold.ID{a.ID}))
	must(t, n.Wait(t.Context(), a.ID, block.ID, eni.ID))
	wantResidue(t, n, empty)
}

// A second release of a block joins an earlier one that waits for a pod. If the pod goes as
// well, the second release is answered only after the block is cut off.
func TestJoinedDeparture(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		block := owner("", "block", "wire", "block")
		pod := onto(owner("", "pod", "wire"), block)
		let, cut := make(chan struct{}), make(chan struct{})
		n := newNodeOf(t, nil, func(o *engine.Options) {
			o.Event = func(e engine.Event) {
				if e.Type == engine.Releasing && e.Owner.ID == block.ID {
					<-let
				}
			}
		})
		take(t, n, block)
		take(t, n, pod)
		n.world.before = hanging(cut, "cut", block.ID)
		answered := map[string]bool{}
		release := func(who string, ids ...hold.ID) {
			if err := n.Release(t.Context(), ids); err != nil {
				t.Errorf("%s: %v", who, err)
			}
			n.world.set(func() { answered[who] = true })
		}
		go release("first", block.ID)
		synctest.Wait()
		go release("second", pod.ID, block.ID)
		synctest.Wait()
		close(let)
		synctest.Wait()
		n.world.set(func() {
			if answered["second"] {
				t.Error("the release is answered, and the block is not cut off")
			}
		})
		close(cut)
		synctest.Wait()
		n.world.set(func() {
			if !answered["second"] {
				t.Error("the release is not answered")
			}
		})
		must(t, n.Wait(t.Context(), block.ID))
		wantResidue(t, n, empty)
	})
}

// Somebody takes away a device and what many owners have on the device. The device is there again before the engine takes the
// rest again, although its kind comes last.
func TestMendsInOrderOfNeeds(t *testing.T) {
	n := newNode(t)
	device := owner("", "device", "proc")
	all := []hold.Owner{device}
	for i := range 20 { // more than the engine mends at once
		all = append(all, onto(owner("", fmt.Sprint("user", i), "wire"), device))
	}
	for _, o := range all {
		take(t, n, o)
	}
	n.world.set(func() { clear(n.world.things); clear(n.world.users); clear(n.world.taken) })
	n.world.before = on("acquire", func(_ context.Context, h hold.Hold) error {
		if h.Owner != device.ID && !n.world.has(device.Holds[0]) {
			return errors.New("no such device")
		}
		return nil
	})
	_, err := n.Sweep(t.Context())
	must(t, err)
	for _, o := range all {
		if !n.world.has(o.Holds[0]) {
			t.Errorf("%s is not there", o.Holds[0].Spec)
		}
	}
}

package agent

import (
	"context"
	"fmt"
	"testing"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/attachment/verbs"
	"github.com/berth-net/berth/internal/daemon/server"
	"github.com/berth-net/berth/internal/engine"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/ledger"
	"github.com/berth-net/berth/internal/mode"
	"github.com/berth-net/berth/internal/mode/modes"
	"github.com/berth-net/berth/internal/nettest"
)

// lateDeletions are the ways in which the attachment "c" can be deleted, each begun at w and
// executed now. None of them knows an ADD that began after w.
var lateDeletions = map[string]func(*rig, server.When) error{
	"DEL": func(r *rig, w server.When) error {
		_, _, err := r.Delete(r.t.Context(), key("c"), false, w)
		return err
	},
	"DEL with its link": func(r *rig, w server.When) error {
		f := key("c")
		f.Link, _ = r.linkOf("c")
		_, _, err := r.Delete(r.t.Context(), f, false, w)
		return err
	},
	"DEL of the container": func(r *rig, w server.When) error {
		_, _, err := r.Delete(r.t.Context(), api.Filter{Container: "c"}, false, w)
		return err
	},
	"GC": func(r *rig, w server.When) error {
		_, err := r.GC(r.t.Context(), api.GCRequest{Network: "net"}, w)
		return err
	},
	"queued": func(r *rig, w server.When) error {
		d := r.deletion("c", "")
		d.Started = w.Started
		return r.undertaken(d)
	},
	"queued with its link": func(r *rig, w server.When) error {
		link, _ := r.linkOf("c")
		d := r.deletion("c", link)
		d.Started = w.Started
		return r.undertaken(d)
	},
}

// told is what a result says of its attachment.
func told(res *types100.Result) string {
	return fmt.Sprint(res.Interfaces[0].Name, addresses(res))
}

// A runtime sends an ADD, then a DEL that is slow on its way, and then the ADD again. The agent
// answers the second ADD with the standing attachment. The DEL is older than that answer, and
// spares the attachment, also in the agent's next life. A DEL that is younger than the answer
// deletes the attachment.
func TestRepeatedAddOutlivesAnEarlierDeletion(t *testing.T) {
	for how, late := range lateDeletions {
		t.Run(how, func(t *testing.T) {
			r := start(t)
			pod, other := nettest.Pod(t), nettest.Pod(t)
			first := r.add(request("c", pod))
			early := now()
			if again := r.add(request("c", pod)); told(again) != told(first) {
				t.Errorf("the ADD again answers %s, and at first %s", told(again), told(first))
			}
			for _, life := range []string{"at once", "after a restart"} {
				if err := late(r, early); err != nil {
					t.Errorf("%s: %v", life, err)
				}
				r.wantAttached("c")
				r.restart()
			}
			if t.Failed() {
				return
			}
			r.add(request("d", other))
			nettest.Ping(t, other, addresses(first)[0])
			r.wantClean()
			if err := late(r, now()); err != nil {
				t.Error(err)
			}
			r.wantGone("c")
		})
	}
}

// The same when the ADD is answered between a deletion's look at the ledger and
// its commit.
func TestRepeatedAddOutlivesADeletionThatHasLooked(t *testing.T) {
	for how, late := range lateDeletions {
		t.Run(how, func(t *testing.T) {
			r := newRig(t)
			var between func()
			r.decorate = func(l engine.Ledger, ks hold.Kinds) (engine.Ledger, hold.Kinds) {
				return &busyLedger{l, &between}, ks
			}
			r.begin()
			pod := nettest.Pod(t)
			first := r.add(request("c", pod))
			early := now()
			var again string
			between = func() { again = told(r.add(request("c", pod))) }
			if err := late(r, early); err != nil {
				t.Error(err)
			}
			if again != told(first) {
				t.Fatalf("the ADD in between answers %q, and at first %s", again, told(first))
			}
			r.wantAttached("c")
			r.wantClean()
		})
	}
}

// A plugin that queued its deletion has also set the link down. If the pod was asked for again
// since, the agent does not do the deletion, and sets the link up.
func TestRepeatedAddOutlivesACut(t *testing.T) {
	r := start(t)
	pod, other := nettest.Pod(t), nettest.Pod(t)
	first := r.add(request("c", pod))
	r.add(request("d", other))
	link, addrs := r.linkOf("c")
	late := r.deletion("c", link)
	late.Addresses, late.Cut = addrs, true
	r.add(request("c", pod))
	nettest.Run(t, r.node.Here, "ip link set "+link+" down")
	r.enqueue(late)
	r.Sweep(t.Context())
	r.wantQueued(0)
	if r.wantAttached("c"); !t.Failed() {
		nettest.Ping(t, other, addresses(first)[0])
	}
	r.wantClean()
}

// A client of the API does not know the id of the pod's network namespace. The agent knows the id
// and records it: otherwise the agent would take an ADD that names the id for another pod's, and a
// later namespace with the same inode for this pod's.
func TestRepeatedAddNamesTheNamespacesID(t *testing.T) {
	r := start(t)
	pod := nettest.Pod(t)
	without := request("c", pod)
	without.Netns.ID = 0
	first := r.add(without)
	if got := r.index.All()[0].Record.Netns; got != pod.Ref() {
		t.Errorf("the record has %+v, not %+v", got, pod.Ref())
	}
	for _, req := range []api.AddRequest{request("c", pod), without} {
		if again := r.add(req); told(again) != told(first) {
			t.Errorf("the ADD again answers %s, and at first %s", told(again), told(first))
		}
	}
}

// A DEL begins after the last look of a repeated ADD, and the last step of the ADD then finds
// no link. The agent answers that a DEL has overtaken the ADD, and not that something is
// broken.
func TestRepeatedAddIsOvertakenAtItsLastStep(t *testing.T) {
	r := start(t)
	routed, _ := modes.List(r.core, r.node, r.ground, r.traffic)
	m := &lateDeletion{Finder: routed}
	r.Agent.Verbs = verbs.New(&r.core.Core, r.index, r.drain, r.ground, mode.Modes{m}, r.networks, r.node.OpenNetns)
	pod := nettest.Pod(t)
	r.add(request("c", pod))
	m.first = func() { r.del("c", true) }
	_, err := r.tryAdd(request("c", pod))
	wantError(t, err, 11, "overtook")
	if m.failed == nil {
		t.Error("the last step has not failed")
	}
}

// lateDeletion is a mode in which something happens before the last step of a repeated ADD.
type lateDeletion struct {
	mode.Finder
	first  func()
	failed error
}

func (m *lateDeletion) Again(o hold.Owner, started int64) error {
	m.first()
	m.failed = m.Finder.Again(o, started)
	return m.failed
}

// busyLedger calls *between once, before its next commit.
type busyLedger struct {
	engine.Ledger
	between *func()
}

func (l *busyLedger) Commit(ctx context.Context, ops ...ledger.Op) error {
	if f := *l.between; f != nil {
		*l.between = nil
		f()
	}
	return l.Ledger.Commit(ctx, ops...)
}

package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/boottime"
	"github.com/berth-net/berth/internal/engine"
	"github.com/berth-net/berth/internal/history"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/ledger"
	"github.com/berth-net/berth/internal/nettest"
)

// pasts returns what the history of a rig's agent has of the attachments that f means.
func (r *rig) pasts(f api.PastFilter) (all []api.Past) {
	r.t.Helper()
	reader := r.History(f)
	defer reader.Close()
	for {
		p, err := reader.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		must(r.t, err)
		all = append(all, p)
	}
	if end := reader.End(); end.Damaged > 0 || end.Lost > 0 {
		r.t.Errorf("the history: %+v", end)
	}
	return all
}

// wantPast returns the newest attachment of a container, and checks who had it released and that
// its times are in order.
func (r *rig) wantPast(container, asker string) api.Past {
	r.t.Helper()
	all := r.pasts(api.PastFilter{Container: container})
	if len(all) == 0 {
		r.t.Fatalf("the history has nothing of %s", container)
	}
	p := all[0]
	if p.AskedBy != asker || p.Ended == nil || p.Attachment.Releasing == nil {
		r.t.Fatalf("%s, released by %q: %+v", container, asker, p)
	}
	last := p.Attachment.Created
	moments := []*time.Time{p.Attachment.Releasing, p.CutOff}
	for _, h := range p.Holds {
		if h.Released == nil {
			r.t.Errorf("%s: %s is not released", container, h.What)
			continue
		}
		if h.Released.Before(*p.Attachment.Releasing) || h.Released.After(*p.Ended) {
			r.t.Errorf("%s: %s went at %s, the release was from %s to %s", container, h.What, h.Released, p.Attachment.Releasing, p.Ended)
		}
	}
	for _, at := range append(moments, p.Ended) {
		if at == nil || at.Before(last) {
			r.t.Fatalf("%s: %v comes after %v: %+v", container, at, last, p)
		}
		last = *at
	}
	return p
}

// The agent tells what became of a pod that is gone, whoever had the pod released. So does the
// next agent, and so does an agent that is still releasing the pod.
func TestHistory(t *testing.T) {
	r, b := startBreakable(t)
	pod := nettest.Pod(t)
	req := request("c", pod)
	req.Args = "K8S_POD_NAMESPACE=blue;K8S_POD_NAME=web-0;K8S_POD_UID=u-1"
	addr := addresses(r.add(req))[0].String()
	was := r.List(key("c"))[0]
	if all := r.pasts(api.PastFilter{Address: addr}); len(all) != 1 || all[0].Ended != nil || all[0].Attachment.ID != was.ID {
		t.Errorf("while it is attached: %+v", all)
	}

	b.set(true, "release", "flows", "")
	r.del("c", false)
	nettest.Eventually(t, "a release to fail twice", func() bool {
		r.core.Engine.Retry()
		all := r.pasts(api.PastFilter{Pod: "blue/web-0"})
		return len(all) == 1 && all[0].Ended == nil && all[0].AskedBy == api.AskedDelete && all[0].CutOff != nil && failuresOf(all[0]) > 1
	})
	b.heal()
	r.core.Engine.Retry()
	nettest.Eventually(t, "it to be gone", func() bool { return len(r.index.All()) == 0 })
	p := r.wantPast("c", api.AskedDelete)
	flows := slices.IndexFunc(p.Holds, func(h api.PastHold) bool { return h.Kind == "flows" })
	if h := p.Holds[flows]; h.Failures < 2 || failuresOf(p) > h.Failures || !strings.Contains(h.Error, "release flows is broken") || h.Since == nil {
		t.Errorf("the tries: %+v", p.Holds)
	}
	if at := p.Attachment; at.ID != was.ID || at.Pod.UID != "u-1" || at.HostVeth != was.HostVeth || at.Netns != was.Netns || at.Addresses[0] != addr {
		t.Errorf("of %+v the history has %+v", was, at)
	}
	for _, f := range []api.PastFilter{{Pod: "blue/web-0"}, {Pod: "u-1"}, {Address: addr, At: *p.Attachment.Releasing}, {Since: *p.Ended}} {
		if all := r.pasts(f); len(all) != 1 {
			t.Errorf("%+v finds %+v", f, all)
		}
	}
	if all := r.pasts(api.PastFilter{Address: addr, At: p.Attachment.Created.Add(-time.Second)}); len(all) > 0 {
		t.Errorf("before its time: %+v", all)
	}
	r.restart()
	r.wantPast("c", api.AskedDelete)

	r.add(request("by-id", pod))
	if _, _, err := r.DeleteOne(t.Context(), r.index.Container("by-id")[0].Owner.ID, true, now()); err != nil {
		t.Error(err)
	}
	r.wantPast("by-id", api.AskedRelease)
	r.add(request("gc", pod))
	if _, err := r.GC(t.Context(), api.GCRequest{Network: "net"}, now()); err != nil {
		t.Error(err)
	}
	r.wantPast("gc", api.AskedGC)
	r.add(request("moved", pod))
	r.add(request("moved", nettest.Pod(t)))
	nettest.Eventually(t, "the former one to be gone", func() bool { return len(r.index.All()) == 1 })
	if all := r.pasts(api.PastFilter{Container: "moved"}); len(all) != 2 || all[0].Ended != nil || all[1].AskedBy != api.AskedReplaced {
		t.Errorf("replaced: %+v", all)
	}
	r.del("moved", true)

	r.add(request("queued", pod))
	r.enqueue(r.deletion("queued", ""))
	must(t, r.drain.All(t.Context()))
	nettest.Eventually(t, "the queued deletion", func() bool { return len(r.index.All()) == 0 })
	r.wantPast("queued", api.AskedQueued)
}

func failuresOf(p api.Past) (n int) {
	for _, h := range p.Holds {
		n += h.Failures
	}
	return n
}

// One agent promises a release, and the next agent does it. The history has the release, with
// all that the next agent knows: when the release was promised, but not by whom.
func TestHistoryAcrossRestart(t *testing.T) {
	r, b := startBreakable(t)
	r.add(request("c", nettest.Pod(t)))
	b.set(true, "release", "flows", "")
	r.del("c", false)
	nettest.Eventually(t, "the release to fail", func() bool { return len(r.core.Engine.Owed("")) > 0 })
	r.close()
	b.heal()
	back := time.Now()
	r.bringUp()
	nettest.Eventually(t, "the pod to be gone", func() bool { return len(r.index.All()) == 0 })
	p := r.wantPast("c", "")
	if !p.Inherited() || p.CutOff.Before(back) {
		t.Errorf("the agent was back at %s: %+v", back, p)
	}
	for at, want := range map[time.Time]int{*p.Attachment.Releasing: 1, p.Attachment.Releasing.Add(1): 0, back: 0} { // DEL was answered
		if all := r.pasts(api.PastFilter{Container: "c", At: at}); len(all) != want {
			t.Errorf("promised at %s, at %s its addresses were those of %+v", p.Attachment.Releasing, at, all)
		}
	}
	r.add(request("d", nettest.Pod(t)))
	r.del("d", true)
	r.restart() // right behind the end of d, before anybody has read of d
	r.wantPast("d", api.AskedDelete)
}

// keepingLedger refuses to forget owners as long as keeps is true.
type keepingLedger struct {
	engine.Ledger
	keeps *atomic.Bool
}

func (l keepingLedger) Commit(ctx context.Context, ops ...ledger.Op) error {
	if l.keeps.Load() && len(ops) > 0 && fmt.Sprintf("%T", ops[0]) == "ledger.forget" {
		return errors.New("the ledger keeps it")
	}
	return l.Ledger.Commit(ctx, ops...)
}

// The record of a pod is in the files before the ledger forgets the pod: an agent that dies in
// between loses nothing, and the next agent tells of the pod once, from the record of the former
// agent. If the ledger forgets the pod late, the history says why.
func TestHistoryBeforeTheLedgerForgets(t *testing.T) {
	r := newRig(t)
	var keeps atomic.Bool
	r.decorate = func(l engine.Ledger, ks hold.Kinds) (engine.Ledger, hold.Kinds) { return keepingLedger{l, &keeps}, ks }
	r.begin()
	pod := nettest.Pod(t)
	written := func(container string) {
		t.Helper()
		now := history.Now{Wall: r.node.Wall(), Boot: r.node.Boot, Boottime: r.node.Boottime()}
		files := history.Read(r.root, history.Limits{Records: 100, Age: time.Hour}, now, api.PastFilter{Container: container})
		defer files.Close()
		if p, err := files.Next(); err != nil || p.AskedBy != api.AskedDelete || p.Ended == nil {
			t.Fatalf("the files have %+v, %v", p, err)
		}
		if all := r.pasts(api.PastFilter{Container: container}); len(all) != 1 || all[0].Ended != nil {
			t.Fatalf("while the ledger has it: %+v", all)
		}
	}
	kept := func(container string) {
		t.Helper()
		keeps.Store(true)
		r.add(request(container, pod))
		r.del(container, false)
		nettest.Eventually(t, "the ledger to keep it", func() bool { return len(r.core.Engine.Owed("")) > 0 })
		written(container)
	}
	once := func(container string) api.Past {
		t.Helper()
		if all := r.pasts(api.PastFilter{Container: container}); len(all) != 1 {
			t.Errorf("%d records: %+v", len(all), all)
		}
		return r.wantPast(container, api.AskedDelete)
	}

	kept("c")
	r.close()
	back := time.Now()
	keeps.Store(false)
	r.bringUp()
	nettest.Eventually(t, "the pod to be gone", func() bool { return len(r.index.All()) == 0 })
	if p := once("c"); p.CutOff.After(back) || p.Ended.Before(back) {
		t.Errorf("the agent was back at %s: %+v", back, p)
	}
	r.restart()
	once("c")

	kept("d")
	healed := time.Now()
	keeps.Store(false)
	r.core.Engine.Retry()
	nettest.Eventually(t, "the pod to be gone", func() bool { return len(r.index.All()) == 0 })
	nettest.Eventually(t, "the history to say why", func() bool {
		p := r.pasts(api.PastFilter{Container: "d"})[0]
		return p.Ended.After(healed) && failuresOf(p) > 0
	})
	r.add(request("e", pod))
	r.del("e", true)
	if all := r.pasts(api.PastFilter{}); len(all) != 3 {
		t.Errorf("of three pods there are %d records: %+v", len(all), all)
	}
}

// The plugin's queue says when a pod was deleted and cut off while no agent ran. From the cut
// on, the history does not name the pod as the holder of its address. A deletion that is not
// about a pod does not mark the pod.
func TestHistoryOfQueuedDeletion(t *testing.T) {
	r := start(t)
	pod := nettest.Pod(t)
	req := request("c", pod)
	addr := addresses(r.add(req))[0].String()
	r.close()
	d := r.deletion("c", "")
	r.enqueue(d) // the plugin has found no link
	d.Cut, d.Started = true, boottime.Now()
	r.enqueue(d)
	back := time.Now()
	r.bringUp()
	nettest.Eventually(t, "the pod to be gone", func() bool { return len(r.index.All()) == 0 })
	p := r.pasts(api.PastFilter{Container: "c"})[0]
	if p.AskedBy != api.AskedQueued || p.Queued == nil || !p.CutByPlugin || p.CutOff == nil || p.Attachment.Releasing.Before(back) {
		t.Fatalf("%+v", p)
	}
	last := p.Attachment.Created
	for _, at := range []time.Time{*p.Queued, *p.CutOff, back} {
		if at.Before(last) {
			t.Fatalf("%s comes after %s: the agent was back at %s: %+v", at, last, back, p)
		}
		last = at
	}
	for at, want := range map[time.Time]int{*p.CutOff: 1, *p.Attachment.Releasing: 0} {
		if all := r.pasts(api.PastFilter{Address: addr, At: at}); len(all) != want {
			t.Errorf("cut off at %s, at %s the address was that of %+v", p.CutOff, at, all)
		}
	}

	r.add(req)
	r.enqueue(d) // a late repetition
	must(t, r.drain.All(t.Context()))
	r.del("c", true)
	if p := r.wantPast("c", api.AskedDelete); p.Queued != nil || p.CutByPlugin {
		t.Errorf("marked by a deletion of another: %+v", p)
	}
}

// An agent takes up a queued deletion, and ends before the release has ended: then the queue has
// lost the deletion. The next agent knows from the ledger what the queue said.
func TestHistoryOfQueuedDeletionAcrossRestart(t *testing.T) {
	r, b := startBreakable(t)
	addr := addresses(r.add(request("c", nettest.Pod(t))))[0].String()
	b.set(true, "release", "flows", "")
	d := r.deletion("c", "")
	d.Cut = true
	r.enqueue(d)
	must(t, r.drain.All(t.Context()))
	nettest.Eventually(t, "the release to fail", func() bool { return len(r.core.Engine.Owed("")) > 0 })
	was := r.pasts(api.PastFilter{Container: "c"})[0]
	if n := r.queued(); n > 0 || was.Queued == nil || !was.CutByPlugin {
		t.Fatalf("%d deletions wait, and the history has %+v", n, was)
	}
	r.restart()
	if p := r.pasts(api.PastFilter{Container: "c"})[0]; p.Ended != nil || p.AskedBy != api.AskedQueued {
		t.Errorf("while it is owed, the history has %+v", p)
	}
	b.heal()
	r.core.Engine.Retry()
	nettest.Eventually(t, "the pod to be gone", func() bool { return len(r.index.All()) == 0 })
	p := r.pasts(api.PastFilter{Container: "c"})[0]
	if p.AskedBy != api.AskedQueued || p.Queued == nil || !p.Queued.Equal(*was.Queued) || !p.CutByPlugin || !p.CutOff.Equal(*was.CutOff) {
		t.Errorf("the former agent knew %+v, the next one %+v", was, p)
	}
	if all := r.pasts(api.PastFilter{Address: addr, At: p.CutOff.Add(1)}); len(all) > 0 {
		t.Errorf("after the cut its address was that of %+v", all)
	}
}

// An ADD that failed is in the history, with the reason.
func TestHistoryOfFailedAdd(t *testing.T) {
	r, b := startBreakable(t)
	b.set(true, "acquire", "link", "")
	if _, err := r.tryAdd(request("c", nettest.Pod(t))); err == nil {
		t.Fatal("the ADD did not fail")
	}
	b.heal()
	nettest.Eventually(t, "the ADD to be undone", func() bool { return len(r.index.All()) == 0 })
	if p := r.wantPast("c", api.AskedFailed); !strings.Contains(p.Failed, "acquire link is broken") {
		t.Errorf("why it failed: %q", p.Failed)
	}
}

// A pod whose network namespace has ended with a reboot is in the history.
func TestHistoryOfReboot(t *testing.T) {
	r := start(t)
	pod := nettest.Pod(t)
	link := r.add(request("c", pod)).Interfaces[0].Name
	nettest.Delete(t, pod)
	nettest.Eventually(t, "its link to be gone", func() bool { return !r.hasLink(link) })
	r.close()
	r.boots, r.booted = r.boots+1, boottime.Now()
	must(t, os.RemoveAll(r.root.Run()))
	r.bringUp()
	r.Sweep(t.Context())
	nettest.Eventually(t, "the pod to be gone", func() bool { return len(r.index.All()) == 0 })
	r.wantPast("c", api.AskedGone)
}

// BenchmarkPast measures what the agent's note that a pod goes costs, with and without the history.
func BenchmarkPast(b *testing.B) {
	for name, records := range map[string]int{"with": 10_000, "without": 0} {
		b.Run(name, func(b *testing.B) {
			r := newRig(b, "default=10.88.0.0/16,fd00:88::/64")
			r.bringUp()
			defer func() { r.releaseAll(); r.remove(b.Context()); r.close() }()
			r.ground.Config().History.Records = records
			r.add(request("c", nettest.Pod(b)))
			ev := engine.Event{Type: engine.Released, Owner: r.index.Container("c")[0].Owner}
			ev.Past = &engine.Past{Asker: api.AskedDelete, Cut: time.Now()}
			for _, h := range ev.Owner.Holds {
				ev.Past.Holds = append(ev.Past.Holds, engine.PastHold{Hold: h, Released: time.Now()})
			}
			b.ReportAllocs()
			for b.Loop() {
				r.Ends([]engine.Event{ev})
			}
		})
	}
}

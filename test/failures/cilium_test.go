package failures

import (
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/test/programs"
)

// cilium #44463, #44530: the teardown went by the interface's name, and hit the next
// StatefulSet pod. cilium #29443: a late release freed what another pod had been given by then.
// Here a DEL deletes no attachment that began after the DEL, even if network, container,
// interface and network namespace are the same.
func TestLateDelSparesTheSameKey(t *testing.T) {
	n := newNode(t, plain)
	pod := nettest.Pod(t)
	n.add("c", pod)
	late := n.begin(call{verb: "DEL", container: "c", netns: pod.Ref().Path, keys: []string{wait}})
	n.del("c", wait)
	heir := n.add("c", pod)
	late.feed()
	if _, err := late.end(); err != nil {
		t.Errorf("late DEL: %v", err)
	}
	if !n.has("c") {
		t.Error("a DEL has deleted what was added after it began")
	}
	nettest.Ping(t, nil, heir.Addr)
	n.Audit(n.t)
}

// cilium #46677: the old pod's DEL removed rules of the address's new owner.
// Here the address's new owner keeps its route and its flows.
func TestLateDelSparesTheAddresssNewOwner(t *testing.T) {
	n := newNode(t, single)
	old := n.add("old", nettest.Pod(t))
	n.del("old", wait)
	pod := nettest.Pod(t)
	var heir attached
	nettest.Eventually(t, "the address to have rested", func() (ok bool) {
		var err error
		heir, err = n.tryAdd("heir", pod)
		return err == nil
	})
	if heir.Addr != old.Addr {
		t.Fatalf("the successor has %s, want %s", heir, old)
	}
	at := nettest.Serve(t, pod, "udp", heir.String()+":53")
	if _, err := nettest.Talk(nil, "udp", at, 10*time.Second); err != nil {
		t.Fatal(err)
	}
	whole := look(t)
	for range 2 {
		n.del("old", wait)
		n.del("old", old.prevResult(), wait)
		n.restart()
	}
	nettest.Same(t, whole, look(t), "the old pod's DEL has changed")
	if _, err := nettest.Talk(nil, "udp", at, 10*time.Second); err != nil {
		t.Error(err)
	}
}

// cilium #43577: an endpoint whose number was in use again between two passes of the garbage
// collector was taken for the dead one. Here GC spares every pod that came after the GC began,
// since the GC's list cannot name the pod.
func TestGCSparesWhoCameAfterIt(t *testing.T) {
	n := newNode(t, plain)
	n.add("dead", nettest.Pod(t))
	gc := n.begin(call{verb: "GC", keys: []string{validKey()}})
	alive := n.add("alive", nettest.Pod(t))
	gc.feed()
	if _, err := gc.end(); err != nil {
		t.Fatal(err)
	}
	nettest.Eventually(t, "the dead one to be collected", func() bool { return len(programs.List(n.t, n.API)) == 1 })
	if !n.has("alive") {
		t.Error("GC has deleted an attachment that its list could not have")
	}
	nettest.Ping(t, nil, alive.Addr)
}

// cilium #9854, #10065: an ADD whose client had given up went on, and what it took was never
// given back, or was taken after the DEL. Here a DEL or a GC takes all that such an ADD took,
// and the agent refuses an ADD that is older than a DEL.
func TestAddOutlivesItsClient(t *testing.T) {
	n := newNode(t, plain)
	const clients = 8
	thaw := n.freeze()
	for i := range clients {
		r := n.begin(call{verb: "ADD", container: fmt.Sprint("dead", i), netns: nettest.Pod(t).Ref().Path})
		r.asks()
		must(t, r.cmd.Process.Kill())
		_ = r.cmd.Wait()
	}
	thaw()
	for i := range clients / 2 {
		n.del(fmt.Sprint("dead", i))
	}
	pod := nettest.Pod(t)
	late := n.begin(call{verb: "ADD", container: "late", netns: pod.Ref().Path})
	n.del("late")
	late.feed()
	_, err := late.end()
	programs.WantError(t, err, 11, "deleted")
	n.collect()
	n.wantNothing()
}

// cilium #39370, #40568, #42074: a DEL during the agent's start was answered
// with "unknown", and then the pod was restored. Here such a DEL waits or is
// queued, and the pod is gone for good.
func TestDelDuringTheStart(t *testing.T) {
	n := newNode(t, plain)
	pod := nettest.Pod(t)
	for range 5 {
		n.add("c", pod)
		n.Crash()
		del := n.begin(call{verb: "DEL", container: "c"})
		deleted := make(chan error)
		go func() {
			del.feed()
			_, err := del.end()
			deleted <- err
		}()
		n.Again()
		err := <-deleted
		var e *api.Error
		if errors.As(err, &e) && e.Code == 11 { // as a runtime does
			err = n.tryDel("c")
		}
		if err != nil {
			t.Fatalf("DEL during the start: %v", err)
		}
		nettest.Eventually(t, "the pod to be gone", func() bool { return len(programs.List(n.t, n.API)) == 0 })
	}
	n.restart()
	n.wantNothing()
}

// cilium #39751: a failed ADD left rules and routes behind. Here a failed ADD
// leaves the node and the pod as they were, also without the DEL that follows.
func TestFailedAddLeavesNothing(t *testing.T) {
	n := newNode(t, plain)
	pod := nettest.Pod(t)
	nettest.Run(t, pod, "ip link add eth0 type veth peer name other")
	before := nettest.Snapshot(t, pod)
	_, err := n.tryAdd("c", pod)
	programs.WantError(t, err, 101, "eth0")
	n.wantNothing()
	nettest.Same(t, before, nettest.Snapshot(t, pod), "the failed ADD has changed the pod")
	n.del("c")
}

// cilium #40393: the numbers of free and of all addresses were mixed up in pools of one address. Here
// the figures of a pool of one address are right.
func TestPoolOfOneAddress(t *testing.T) {
	n := newNode(t, "cooldown: 1h\npools:\n- {name: default, cidrs: [10.88.0.7/32]}\n")
	want := func(used, resting int) {
		t.Helper()
		if p := n.pool(); p.Size != "1" || p.Used != used || p.Resting != resting {
			t.Errorf("the pool's figures: %+v, want size 1, %d used, %d resting", p, used, resting)
		}
		pools, err := n.API.Pools(t.Context())
		must(t, err)
		if full := pools[0].Exhausted; (full == "") != (used+resting == 0) {
			t.Errorf("with %d used and %d resting the pool is exhausted: %q", used, resting, full)
		}
		if _, err := n.exec(call{verb: "STATUS"}); err != nil { // an error would make the node NotReady
			t.Errorf("STATUS with %d used and %d resting: %v", used, resting, err)
		}
	}
	want(0, 0)
	n.add("c", nettest.Pod(t))
	want(1, 0)
	_, err := n.tryAdd("d", nettest.Pod(t))
	programs.WantError(t, err, 100, "1 in use")
	n.del("c", wait)
	want(0, 1)
}

// cilium #24361, #21604, agent-sandbox #1187: the agent let in one pod in two
// seconds, so that a burst took half a minute. cilium, general: an agent of
// 250 MB. Here a burst is served at once, nobody is told to come again, and the
// agent stays small.
func TestBurst(t *testing.T) {
	n := newNode(t, plain)
	for _, got := range n.burst(60) {
		nettest.Ping(t, nil, got.Addr)
	}
	n.collect()
	n.wantNothing()
	if size, err := n.Resident(); err != nil || size > 80<<20 {
		t.Errorf("the agent has %d MiB, %v", size>>20, err)
	}
}

// cilium, general: 4,095 endpoints a node and no more. Here only the node's addresses limit its
// attachments: 4,200 pods come, are whole, and go without a trace.
func TestMoreEndpointsThanIDs(t *testing.T) {
	const pods, each = 42, 100
	n := newNode(t, "pools:\n- {name: default, cidrs: [10.88.0.0/19]}\n")
	config := json.RawMessage(fmt.Sprintf(`{"cniVersion": "1.1.0", "name": "many", "type": "berth-cni", "root": %q}`, n.Root))
	var busy sync.WaitGroup
	var netns []*ns.Netns
	for range pods {
		pod := nettest.Pod(t)
		netns = append(netns, pod)
		busy.Go(func() {
			for i := range each {
				_, err := n.API.Add(t.Context(), api.AddRequest{
					ContainerID: fmt.Sprint("c", pod.Ref().ID), Ifname: fmt.Sprint("eth", i), Netns: api.Netns(pod.Ref()), Config: config,
				})
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	busy.Wait()
	if p := n.pool(); p.Used != pods*each {
		t.Fatalf("%d addresses are used, not %d", p.Used, pods*each)
	}
	n.Audit(n.t)
	for _, pod := range netns { // DEL of a container is one call, whatever attachments the container has
		if _, err := n.API.Delete(t.Context(), api.Filter{Container: fmt.Sprint("c", pod.Ref().ID)}, true); err != nil {
			t.Error(err)
		}
	}
	gone(t, netns...)
	n.wantNothing()
}

// gone ends a pod's network namespace, as a runtime does that never calls DEL.
func gone(t *testing.T, pods ...*ns.Netns) {
	t.Helper()
	for _, p := range pods {
		nettest.Delete(t, p)
	}
}

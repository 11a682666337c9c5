package agent

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/api/v1alpha1"
	"github.com/berth-net/berth/internal/kube/kubetest"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/notice"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// wantEvent waits until the API server has just one Event that begins so, and returns it.
func (op *operator) wantEvent(t *testing.T, begins string) (text string) {
	t.Helper()
	nettest.Eventually(t, "an Event: "+begins, func() bool {
		all := slices.DeleteFunc(op.Events(), func(e string) bool { return !strings.HasPrefix(e, begins) })
		if len(all) > 0 {
			text = all[0]
		}
		return len(all) == 1
	})
	return text
}

// A pod that gets no address has an Event that says why, and one alone however often the runtime tries. A pod that gets one has none.
// While the API server is away, an ADD in vain waits for nothing, and people are told later.
func TestPodsWithoutAddressesHaveEvents(t *testing.T) {
	r, op := startPooled(t, false)
	defer r.follows()()
	op.wantHeld(t, "10.60.0.0/31")
	for i := range 3 { // so that the node needs a second block
		in(t, r, op.ofPod(fmt.Sprint("well", i), "plain", "", nettest.Pod(t)), "10.60.0.")
	}
	op.mu.Lock()
	op.idle = true
	op.mu.Unlock()

	_, err := r.tryAdd(op.ofPod("none", "plain", "no such pool", nettest.Pod(t)))
	wantError(t, err, 7, "has no IPPool")
	op.wantEvent(t, `Pod plain/none Warning PoolRefused: Berth gives the pod no address: unknown pool: annotation berth.dev/pool of pod plain/none: the cluster has no IPPool "no such pool"; it has blue, gold, red`)
	pod := nettest.Pod(t)
	for range 2 {
		_, err = r.tryAdd(op.ofPod("early", "plain", "red", pod))
		wantError(t, err, 11, "no block of pool red yet")
	}
	op.wantEvent(t, "Pod plain/early Warning NoAddressYet: Berth gives the pod no address: no address yet: the node has no block of pool red yet")

	op.Edit("ippools", "/red", func(o kubetest.Object) {
		o["status"] = kubetest.Object{
			"blocks":     v1alpha1.BlockCount{Total: 128, Given: 128, Nodes: 9},
			"conditions": []metav1.Condition{{Type: v1alpha1.ConditionExhausted, Status: metav1.ConditionTrue, Reason: "NoBlockLeft"}},
		}
	})
	nettest.Eventually(t, "the agent to hear that red is exhausted", func() bool {
		_, err = r.tryAdd(op.ofPod("late", "plain", "red", pod))
		return strings.Contains(strings.Join(op.Events(), "\n"), "Pod plain/late Warning AddressesExhausted: ")
	})
	if text := op.wantEvent(t, "Pod plain/late Warning AddressesExhausted: "); !strings.Contains(text, "IPPool red has no block left for the node: 128 of its 128 blocks are given, to 9 nodes") {
		t.Errorf("the Event says %q", text)
	}

	op.Break(503)
	var last string
	for i := range 20 { // until the node's blocks are used up
		last = fmt.Sprint("full", i)
		began := time.Now()
		if _, err = r.tryAdd(op.ofPod(last, "plain", "", nettest.Pod(t))); err != nil {
			if took := time.Since(began); took > 5*time.Second {
				t.Errorf("the ADD took %v while the API server was away", took)
			}
			break
		}
	}
	wantError(t, err, 100, "pool blue has no free IPv4 address")
	op.Break(0)
	op.wantEvent(t, "Pod plain/"+last+" Warning AddressesExhausted: Berth gives the pod no address: pool blue has no free IPv4 address: ")
	if all := strings.Join(op.Events(), "\n"); strings.Contains(all, "plain/well") {
		t.Errorf("a pod that is well has an Event:\n%s", all)
	}
	var counts map[string]uint64
	nettest.Eventually(t, "the status to count the Events", func() bool { // the API server has an Event before the agent hears so
		st, err := r.Status(t.Context(), "")
		must(t, err)
		counts = st.Cluster.Events
		return counts[api.ClusterEventWritten] >= 4
	})
	if counts[api.ClusterEventDropped] != 0 {
		t.Errorf("the status counts the Events %v", counts)
	}
}

// What a pod had and could not be given back for a minute is told of the pod and of its node, and when it is given back, that is told, too.
// DEL waits for none of it.
func TestOwedReleasesHaveEvents(t *testing.T) {
	r, op := startPooled(t, false)
	b := newBreaker()
	stop := r.follows()
	op.wantHeld(t, "10.60.0.0/31")
	stop()
	r.close()
	r.decorate = b.decorate
	r.bringUp()
	r.cluster.Long, r.cluster.Notices.Every = time.Second, time.Second
	defer r.follows()()
	web := op.ofPod("web", "plain", "", nettest.Pod(t))
	nettest.Eventually(t, "web to be attached, once the agent has heard of the pools again", func() bool { _, err := r.tryAdd(web); return err == nil })
	b.set(true, "release", "link", "")
	began := time.Now()
	r.del("web", false)
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("DEL took %v", took)
	}
	nettest.Eventually(t, "the link to be owed", func() bool { return len(r.OwedHolds()) > 0 })
	holds, node, known := r.OwedHolds(), "me", r.core.Ledger.Owner
	var releases notice.Releases
	if all := releases.Troubles(node, holds, known, notice.Long, holds[0].Since.Add(59*time.Second)); len(all) > 0 {
		t.Errorf("people are told within a minute: %v", all)
	}
	all := releases.Troubles(node, holds, known, notice.Long, holds[0].Since.Add(time.Minute))
	if len(all) != 2 || all[0].About != notice.Node(node) || all[1].About != (notice.Object{Kind: "Pod", Namespace: "plain", Name: "web", UID: "u-web"}) {
		t.Fatalf("people are told %+v", all)
	}
	for i, says := range []string{"Releases of 1 pods and other owners are owed for longer than a minute", "could not give back what this pod had of its network, and tries again. The pod is cut off, and nobody gets its addresses"} {
		if text := all[i].Text; !strings.Contains(text, says) || !strings.Contains(text, "release link is broken") || !strings.Contains(text, "(link), owed since ") {
			t.Errorf("people are told %q", text)
		}
	}
	op.wantEvent(t, "Pod plain/web Warning ReleaseOwed: Node me could not give back")
	op.wantEvent(t, "Node me Warning ReleasesOwed: Releases of 1 pods")
	b.heal()
	r.core.Engine.Retry()
	op.wantEvent(t, "Pod plain/web Normal ReleasePaid: Node me has given back all that this pod had of its network.")
	op.wantEvent(t, "Node me Normal ReleasesPaid: No release is owed any more.")
}

// A node whose pods' CIDR another node has, too, shows in the status and as an Event of the node, until it has gone.
func TestNodesWithoutAWayShow(t *testing.T) {
	segment(t)
	r, op := startPooled(t, false)
	r.cluster.Notices.Every = time.Second
	defer r.follows()()
	for name, end := range map[string]string{"a": "11", "b": "12"} {
		op.Put("nodes", kubetest.Object{"metadata": kubetest.Object{"name": name}, "status": kubetest.Object{"addresses": []any{kubetest.Object{"type": "InternalIP", "address": "192.0.2." + end}}}})
	}
	put := func(name string) {
		op.Put("nodenetworks", kubetest.Object{"metadata": kubetest.Object{"name": name}, "spec": kubetest.Object{"blocks": []any{kubetest.Object{"pool": "blue", "cidr": "10.60.0.128/31"}}}})
	}
	put("a")
	nettest.Eventually(t, "a way to node a", func() bool { return strings.Contains(nettest.Snapshot(t, nil).String(), "via 192.0.2.11") })
	put("b")
	const says = "the CIDR 10.60.0.128/31 of its pods overlaps those of node a: [10.60.0.128/31]"
	op.wantEvent(t, "Node me Warning NodesUnrouted: This node has no way to the pods of node b: "+says)
	st, err := r.Status(t.Context(), "")
	must(t, err)
	if c := st.Cluster; c.Node != "me" || c.UnroutedNodes != 1 || !slices.Equal(c.Unrouted, []api.UnroutedNode{{Node: "b", Reason: says}}) {
		t.Errorf("the status says %+v", c)
	}
	op.Delete("nodenetworks", "/a")
	op.wantEvent(t, "Node me Normal NodesRouted: This node has ways to the pods of all other nodes.")
}

package agent

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/api/v1alpha1"
	"github.com/berth-net/berth/internal/config"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/kube/kubetest"
	"github.com/berth-net/berth/internal/nettest"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// operator gives the node "me" blocks of two addresses each, as its requests say, and takes blocks out of its NodeNetwork that
// are withdrawn and not held.
type operator struct {
	*kubetest.Server
	mu   sync.Mutex
	idle bool           // it gives nothing
	last map[string]int // number of the last block, by pool
	nets map[string]string
}

// startPooled starts a rig whose cluster has the pools blue (the default one), red and gold, which is for the namespace rich only.
// responder says whether the node has a health responder, which takes an address of the default pool.
func startPooled(t *testing.T, responder bool) (*rig, *operator) {
	t.Helper()
	r := newRig(t)
	r.untracked()
	op := &operator{Server: kubetest.Serve(t), last: map[string]int{}, nets: map[string]string{"blue": "10.60.0.", "red": "10.61.0.", "gold": "10.62.0."}}
	op.Wrote = func(string, kubetest.Object) { op.work() }
	for name := range op.nets {
		p := v1alpha1.IPPool{Spec: v1alpha1.IPPoolSpec{IPv4: &v1alpha1.Range{CIDRs: []string{op.nets[name] + "0/24"}, BlockSize: 31}, Default: name == "blue"}}
		if p.Name = name; name == "gold" {
			p.Spec.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"rich": "yes"}}
		}
		op.Put("ippools", p)
	}
	op.Put("nodes", kubetest.Object{"metadata": kubetest.Object{"name": "me"}, "status": kubetest.Object{"addresses": []any{kubetest.Object{"type": "InternalIP", "address": "192.0.2.1"}}}})
	for _, n := range []string{"plain", "rich"} {
		op.Put("namespaces", kubetest.Object{"metadata": kubetest.Object{"name": n, "labels": kubetest.Object{n: "yes"}}})
	}
	op.Put("nodenetworks", kubetest.Object{"metadata": kubetest.Object{"name": "me"}})
	r.pools = nil
	must(t, os.MkdirAll(filepath.Dir(r.root.Config()), 0o755))
	must(t, os.WriteFile(r.root.Config(), fmt.Appendf(nil, "cooldown: 1ms\nkubernetes: {node: me, kubeconfig: %q, addresses: pools, routing: native, health: {enabled: %t}}\n", op.Kubeconfig(t), responder), 0o644))
	r.begin()
	return r, op
}

// untracked has the kernel track no connections on lo: the agent's connections to the API server would be other tests' residue, until
// they are forgotten.
func (r *rig) untracked() {
	t := r.t
	t.Helper()
	for _, c := range []string{
		"nft add table ip loopback", "nft add chain ip loopback out { type filter hook output priority raw ; }", "nft add rule ip loopback out oifname lo notrack",
		"nft add chain ip loopback in { type filter hook prerouting priority raw ; }", "nft add rule ip loopback in iifname lo notrack",
	} {
		nettest.Run(t, nil, c)
	}
	t.Cleanup(func() { nettest.Run(t, nil, "nft delete table ip loopback") })
}

// follows runs what an agent does because it is in a cluster.
func (r *rig) follows() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	c, tr := r.cluster, r.traffic
	all.Go(func() { c.Follow(ctx) })
	all.Go(func() { c.Peers.Keep(ctx) })
	all.Go(func() { tr.KeepRinsed(ctx) })
	return func() { cancel(); all.Wait() }
}

// work does what the requests ask for.
func (op *operator) work() {
	op.mu.Lock()
	defer op.mu.Unlock()
	op.Edit("nodenetworks", "/me", func(o kubetest.Object) {
		spec, _ := o["spec"].(kubetest.Object)
		blocks, _ := spec["blocks"].([]any)
		status, _ := o["status"].(kubetest.Object)
		held := fmt.Sprint(status["held"])
		blocks = slices.DeleteFunc(blocks, func(b any) bool {
			block := b.(kubetest.Object)
			return block["withdrawn"] == true && !strings.Contains(held, fmt.Sprint(block["cidr"]))
		})
		requests, _ := status["requests"].([]any)
		for _, q := range requests {
			pool := q.(kubetest.Object)["pool"].(string)
			have := 0
			for _, b := range blocks {
				if block := b.(kubetest.Object); block["pool"] == pool && block["withdrawn"] != true {
					have += 2
				}
			}
			for ; !op.idle && have < int(q.(kubetest.Object)["addresses"].(float64)); have += 2 {
				blocks = append(blocks, kubetest.Object{"pool": pool, "cidr": fmt.Sprintf("%s%d/31", op.nets[pool], 2*op.last[pool])})
				op.last[pool]++
			}
		}
		o["spec"] = kubetest.Object{"blocks": blocks}
	})
}

// edit changes the blocks of the node.
func (op *operator) edit(change func([]v1alpha1.Block) []v1alpha1.Block) {
	op.mu.Lock()
	defer op.mu.Unlock()
	op.Edit("nodenetworks", "/me", func(o kubetest.Object) {
		var n v1alpha1.NodeNetwork
		kubetest.Decode(o, &n)
		blocks := []any{}
		for _, b := range change(n.Spec.Blocks) {
			blocks = append(blocks, kubetest.Object{"pool": b.Pool, "cidr": b.CIDR, "withdrawn": b.Withdrawn})
		}
		o["spec"] = kubetest.Object{"blocks": blocks}
	})
}

// network returns the node's NodeNetwork.
func (op *operator) network() (n v1alpha1.NodeNetwork) {
	kubetest.Decode(op.Get("nodenetworks", "/me"), &n)
	return n
}

// held returns the CIDRs that the node says it holds, and spec those that the operator gives.
func (op *operator) held() (cidrs []string) {
	for _, b := range op.network().Status.Held {
		cidrs = append(cidrs, b.CIDR)
	}
	return cidrs
}

func (op *operator) wantHeld(t *testing.T, want ...string) {
	t.Helper()
	var have []string
	nettest.Eventually(t, fmt.Sprint("held to be ", want), func() bool { have = op.held(); return slices.Equal(have, want) })
}

// ofPod is an ADD for a pod of a namespace, which the API server knows with the annotation pool ("": without).
func (op *operator) ofPod(container, namespace, pool string, pod *ns.Netns) api.AddRequest {
	o := kubetest.Object{"metadata": kubetest.Object{"name": container, "namespace": namespace, "uid": "u-" + container}, "spec": kubetest.Object{"nodeName": "me"}}
	if pool != "" {
		o["metadata"].(kubetest.Object)["annotations"] = kubetest.Object{v1alpha1.AnnotationPool: pool}
	}
	op.Put("pods", o)
	req := request(container, pod)
	req.Args = fmt.Sprintf("IgnoreUnknown=1;K8S_POD_NAMESPACE=%s;K8S_POD_NAME=%s;K8S_POD_UID=u-%s", namespace, container, container)
	return req
}

func in(t *testing.T, r *rig, req api.AddRequest, net string) {
	t.Helper()
	for _, a := range addresses(r.add(req)) {
		if !strings.HasPrefix(a.String(), net) {
			t.Errorf("%s has %s, want an address of %s", req.ContainerID, a, net)
		}
	}
}

// A node gets blocks as its pods come, in the pools that the pods ask for, and gives them back when they go. While the API
// server is away, it works with what it has, also after a restart.
func TestLeases(t *testing.T) {
	r, op := startPooled(t, false)
	stop := r.follows()
	defer func() { stop() }()
	op.wantHeld(t, "10.60.0.0/31")
	in(t, r, op.ofPod("a", "plain", "", nettest.Pod(t)), "10.60.0.")
	in(t, r, op.ofPod("b", "plain", "red", nettest.Pod(t)), "10.61.0.") // which waits for the block
	in(t, r, op.ofPod("c", "rich", "gold", nettest.Pod(t)), "10.62.0.")
	_, err := r.tryAdd(op.ofPod("d", "plain", "gold", nettest.Pod(t)))
	wantError(t, err, 7, "namespaceSelector of IPPool gold does not select the pod's namespace")
	_, err = r.tryAdd(op.ofPod("e", "plain", "no such pool", nettest.Pod(t)))
	wantError(t, err, 7, `the cluster has no IPPool "no such pool"; it has blue, gold, red`)
	for i := range 5 {
		in(t, r, op.ofPod(fmt.Sprint("f", i), "plain", "", nettest.Pod(t)), "10.60.0.")
	}
	r.wantClean()

	// Everything of red goes.
	r.del("b", true)
	nettest.Eventually(t, "the node to need nothing of red", func() bool {
		r.Sweep(t.Context())
		return !slices.ContainsFunc(op.network().Status.Requests, func(q v1alpha1.Request) bool { return q.Pool == "red" })
	})
	op.edit(func(blocks []v1alpha1.Block) []v1alpha1.Block {
		for i := range blocks {
			blocks[i].Withdrawn = blocks[i].Pool == "red"
		}
		return blocks
	})
	nettest.Eventually(t, "red's blocks to be given back", func() bool {
		r.Sweep(t.Context())
		return !strings.Contains(fmt.Sprint(op.held(), op.network().Spec), "10.61.")
	})

	// The API server is away, and the next agent has only its ledger.
	stop()
	op.Break(503)
	before := r.ground.Given()
	r.restart()
	stop = r.follows()
	if now := r.ground.Given(); !now.Is(before) || len(now.Leases) < 4 {
		t.Errorf("after the restart the node has %v, want %v", now, before)
	}
	r.del("a", true)
	in(t, r, op.ofPod("g", "plain", "", nettest.Pod(t)), "10.60.0.")
	r.wantClean()
}

// A block that is withdrawn while pods have addresses of it drains: it gives out no more, and is held until the last pod is gone.
// Then its pool's route is gone, too.
func TestLeaseDrains(t *testing.T) {
	r, op := startPooled(t, false)
	stop := r.follows()
	defer func() { stop() }()
	op.wantHeld(t, "10.60.0.0/31")
	in(t, r, op.ofPod("a", "plain", "", nettest.Pod(t)), "10.60.0.0")
	op.edit(func(blocks []v1alpha1.Block) []v1alpha1.Block { return nil }) // by hand, and without a warning
	nettest.Eventually(t, "the block to drain", func() bool {
		return len(r.ground.Given().Leases) == 0 || r.ground.Given().Leases[0].CIDR.Addr().String() != "10.60.0.0"
	})
	in(t, r, op.ofPod("b", "plain", "", nettest.Pod(t)), "10.60.0.")
	if a := addresses(r.add(request("b", nettest.Pod(t))))[0]; netip.MustParsePrefix("10.60.0.0/31").Contains(a) {
		t.Errorf("%s is out of a block that drains", a)
	}
	stop()
	r.restart() // in the middle of it
	stop = r.follows()
	for range 3 {
		r.Sweep(t.Context())
	}
	if held := op.held(); !slices.Contains(held, "10.60.0.0/31") {
		t.Errorf("held is %v while a pod has an address of 10.60.0.0/31", held)
	}
	r.del("a", true)
	nettest.Eventually(t, "the block to be given back", func() bool { r.Sweep(t.Context()); return !slices.Contains(op.held(), "10.60.0.0/31") })
	if routes := nettest.Snapshot(t, nil).Only("route").String(); strings.Contains(routes, "10.60.0.0/31") {
		t.Errorf("the block's route is left:\n%s", routes)
	}
	r.wantClean()
}

// A block that overlaps what the node has, and a block that is none, are refused, and the NodeNetwork says so. Others are taken.
func TestLeaseRefused(t *testing.T) {
	segment(t)
	r, op := startPooled(t, false)
	op.edit(func([]v1alpha1.Block) []v1alpha1.Block {
		return []v1alpha1.Block{{Pool: "blue", CIDR: "192.0.2.0/26"}, {Pool: "blue", CIDR: "nonsense"}, {Pool: "blue", CIDR: "10.60.0.200/31"}, {Pool: "red", CIDR: "10.60.0.200/30"}, {Pool: "Blue!", CIDR: "10.60.0.220/31"}}
	})
	stop := r.follows()
	defer stop()
	op.wantHeld(t, "10.60.0.200/31")
	var text string
	nettest.Eventually(t, "the condition Refused", func() bool {
		for _, c := range op.network().Status.Conditions {
			if c.Type == v1alpha1.ConditionRefused && c.Status == metav1.ConditionTrue {
				text = c.Message
			}
		}
		return text != ""
	})
	for _, part := range []string{"192.0.2.0/26: pool blue", `"nonsense"`, "10.60.0.200/30: it overlaps", `"Blue!" names no pool`} {
		if !strings.Contains(text, part) {
			t.Errorf("Refused says %q, want %q", text, part)
		}
	}
}

// A block comes from another node to this one: there is one way to it at each moment.
func TestLeaseMovesHere(t *testing.T) {
	segment(t)
	r, op := startPooled(t, false)
	stop := r.follows()
	defer stop()
	op.wantHeld(t, "10.60.0.0/31")
	op.Put("nodes", kubetest.Object{"metadata": kubetest.Object{"name": "x"}, "status": kubetest.Object{"addresses": []any{kubetest.Object{"type": "InternalIP", "address": "192.0.2.9"}}}})
	op.Put("nodenetworks", kubetest.Object{"metadata": kubetest.Object{"name": "x"}, "spec": kubetest.Object{"blocks": []any{
		kubetest.Object{"pool": "red", "cidr": "10.61.0.80/31"}, kubetest.Object{"pool": "red", "cidr": "10.61.0.90/31"}}}})
	way := func(text string) bool { return strings.Contains(nettest.Snapshot(t, nil).Only("route").String(), text) }
	nettest.Eventually(t, "a way to both of the other node's blocks", func() bool {
		return way("unicast 10.61.0.80/31 dev seg0 via 192.0.2.9") && way("unicast 10.61.0.90/31 dev seg0 via 192.0.2.9")
	})
	op.edit(func(b []v1alpha1.Block) []v1alpha1.Block {
		return append(b, v1alpha1.Block{Pool: "red", CIDR: "10.61.0.80/31"})
	})
	nettest.Eventually(t, "the agent to find that the block is the other node's", func() bool {
		err := r.ground.Lacking("red")
		return err != nil && strings.Contains(err.Error(), "still somebody else's")
	})
	if !way("unicast 10.61.0.80/31 dev seg0 via 192.0.2.9") || way("unreachable 10.61.0.80/31") {
		t.Error("there is no way, or there are two, to a block that is still the other node's")
	}
	op.Put("nodenetworks", kubetest.Object{"metadata": kubetest.Object{"name": "x"}, "spec": kubetest.Object{"blocks": []any{kubetest.Object{"pool": "red", "cidr": "10.61.0.90/31"}}}})
	nettest.Eventually(t, "the block to be this node's alone", func() bool {
		return slices.Contains(op.held(), "10.61.0.80/31") && !way("unicast 10.61.0.80/31 dev seg0") && way("unreachable 10.61.0.80/31") && slices.Contains(r.ground.Given().Leases, config.Lease{Pool: "red", CIDR: netip.MustParsePrefix("10.61.0.80/31")}) && r.ground.Lacking("red") == nil
	})
	r.wantClean()
}

// An ADD waits for addresses until its deadline, also if the pool seems to have some and the ADD gets none of them.
func TestAwaitEnds(t *testing.T) {
	r, op := startPooled(t, false)
	stop := r.follows()
	defer stop()
	op.wantHeld(t, "10.60.0.0/31")
	in(t, r, op.ofPod("a", "plain", "", nettest.Pod(t)), "10.60.0.0")
	nettest.Eventually(t, "the pool to have addresses", func() bool { return r.ground.Pools.Available("blue", r.core.Clock.Now()) == nil })
	if r.ground.Await(t.Context(), "blue", "x", time.Now().Add(-time.Second), false) {
		t.Error("an ADD whose deadline has passed is told to try again")
	}
	if r.ground.Await(t.Context(), "blue", "x", time.Now().Add(10*time.Millisecond), true) {
		t.Error("an ADD is told to try again, and nothing has changed")
	}
}

// A node gives back its last block, too, although its health responder has an address of it.
func TestLastLeaseGoes(t *testing.T) {
	r, op := startPooled(t, true)
	stop := r.follows()
	defer stop()
	op.wantHeld(t, "10.60.0.0/31")
	in(t, r, op.ofPod("a", "plain", "", nettest.Pod(t)), "10.60.0.")
	nettest.Eventually(t, "the responder to have an address", func() bool {
		_, held := r.core.Ledger.Holder(hold.Name{Space: "agent", Name: "health/responder"})
		return held
	})
	op.mu.Lock()
	op.idle = true
	op.mu.Unlock()
	r.del("a", true)
	op.edit(func(blocks []v1alpha1.Block) []v1alpha1.Block {
		for i := range blocks {
			blocks[i].Withdrawn = true
		}
		return blocks
	})
	nettest.Eventually(t, "all blocks to be given back", func() bool { r.Sweep(t.Context()); return len(op.network().Spec.Blocks) == 0 })
	if routes := nettest.Snapshot(t, nil).Only("route").String(); strings.Contains(routes, "10.60.") {
		t.Errorf("a route is left:\n%s", routes)
	}
	_, err := r.tryAdd(op.ofPod("b", "plain", "", nettest.Pod(t)))
	wantError(t, err, 11, "no block of pool blue yet")
	r.wantClean()
}

// Somebody deletes the NodeNetwork while pods run. Its blocks drain, and the pods keep their addresses. The next NodeNetwork says at
// once what the node holds, so that nobody else gets it.
func TestNodeNetworkDeleted(t *testing.T) {
	r, op := startPooled(t, false)
	stop := r.follows()
	defer stop()
	op.wantHeld(t, "10.60.0.0/31")
	in(t, r, op.ofPod("a", "plain", "", nettest.Pod(t)), "10.60.0.0")
	op.Delete("nodenetworks", "/me")
	nettest.Eventually(t, "the blocks to drain", func() bool { return len(r.ground.Given().Leases) == 0 })
	r.Sweep(t.Context())
	_, err := r.tryAdd(op.ofPod("b", "plain", "", nettest.Pod(t)))
	wantError(t, err, 11, "no block of pool blue yet")
	r.wantAttached("a")
	op.Put("nodenetworks", kubetest.Object{"metadata": kubetest.Object{"name": "me"}})
	nettest.Eventually(t, "the block to be held, and a new one to be given", func() bool {
		held := op.held()
		return slices.Contains(held, "10.60.0.0/31") && len(held) > 1
	})
	in(t, r, op.ofPod("b", "plain", "", nettest.Pod(t)), "10.60.0.")
	r.wantClean()
}

package cluster

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-net/berth/api/v1alpha1"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/test/programs"
)

// pools is a control plane with Berth's CRDs, operators, and nodes that are API objects alone: the test plays their agents.
type pools struct {
	*control
	client.Client
	ctx       context.Context
	operators []*daemon
	agents    map[string]*player
}

// player is what a node's agent does, as api/v1alpha1 says: it holds what its spec has, and lets go of what is withdrawn.
type player struct {
	needs map[string]int32
	busy  map[string]bool  // blocks that pods have addresses of
	first []v1alpha1.Block // what its ledger had before it saw its NodeNetwork
}

// startPools starts the control plane, and so many operators.
func startPools(t *testing.T, operators int, flags ...string) *pools {
	t.Helper()
	bin := needCluster(t)
	bridge(t)
	p := &pools{control: startControl(t, bin), ctx: t.Context(), agents: map[string]*player{}}
	scheme := runtime.NewScheme()
	must(t, clientgoscheme.AddToScheme(scheme))
	must(t, v1alpha1.AddToScheme(scheme))
	var err error
	p.Client, err = client.New(&rest.Config{
		Host: "https://" + world4 + ":6443", BearerToken: admin, QPS: -1, TLSClientConfig: rest.TLSClientConfig{CAData: p.ca},
	}, client.Options{Scheme: scheme})
	must(t, err)
	p.installOperator()
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(p.mustKubectl("get", "ippools,nodenetworks", "-o", "jsonpath={range .items[*]}{.metadata.name} {.spec} {.status}{\"\\n\"}{end}"))
		}
	})
	for i := range operators {
		p.operators = append(p.operators, p.startOperator(i, flags...))
	}
	return p
}

// installOperator makes what operators need: the CRDs, and a user who has their rights.
func (c *control) installOperator() {
	c.t.Helper()
	raw, err := os.ReadFile(filepath.Join(programs.Tree(c.t), "deploy/kubernetes/pools.yaml"))
	must(c.t, err)
	var objects []string // without the agents'
	for _, o := range strings.Split(string(raw), "\n---\n") {
		if strings.Contains(o, "kind: CustomResourceDefinition") || strings.Contains(o, "name: berth-operator") {
			objects = append(objects, o)
		}
	}
	// The Deployment's image is nowhere: the test runs the operator as a user who has the service account's rights.
	c.apply(strings.ReplaceAll(strings.Join(objects, "\n---\n"), "{kind: ServiceAccount, name: berth-operator, namespace: kube-system}",
		"{kind: User, name: berth-operator, apiGroup: rbac.authorization.k8s.io}"))
	c.mustKubectl("wait", "--for=condition=Established", "crd/ippools.berth.dev", "crd/nodenetworks.berth.dev")
	c.mustKubectl("scale", "deployment/berth-operator", "--namespace=kube-system", "--replicas=0")
	c.write("etc/kubernetes/"+operator, c.kubeconfig(operator))
}

// startOperator starts the ith operator on the control plane's machine.
func (c *control) startOperator(i int, flags ...string) *daemon {
	c.t.Helper()
	args := append([]string{"--kubeconfig=/etc/kubernetes/" + operator, "--namespace=kube-system", "--metrics=0",
		fmt.Sprintf("--health=127.0.0.1:%d", 9900+i)}, flags...)
	return c.daemon(filepath.Join(programs.Own(c.t), "berth-operator"), args...)
}

// node makes a Node, and its agent.
func (p *pools) node(name string, needs map[string]int32) {
	p.t.Helper()
	must(p.t, p.Create(p.ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"kubernetes.io/os": "linux"}}}))
	p.agents[name] = &player{needs: needs, busy: map[string]bool{}}
}

// network returns a node's NodeNetwork; nil if there is none.
func (p *pools) network(name string) *v1alpha1.NodeNetwork {
	p.t.Helper()
	var n v1alpha1.NodeNetwork
	err := p.Get(p.ctx, client.ObjectKey{Name: name}, &n)
	if apierrors.IsNotFound(err) {
		return nil
	}
	must(p.t, err)
	return &n
}

func (p *pools) pool(name string) *v1alpha1.IPPool {
	p.t.Helper()
	var pool v1alpha1.IPPool
	must(p.t, p.Get(p.ctx, client.ObjectKey{Name: name}, &pool))
	return &pool
}

// edit changes an object as people do, who try again if somebody was faster.
func edit[T client.Object](p *pools, get func() T, change func(T)) error {
	for {
		o := get()
		change(o)
		if err := p.Update(p.ctx, o); !apierrors.IsConflict(err) {
			return err
		}
	}
}

// play lets all agents look at their NodeNetworks once, and checks that no block is with two nodes.
func (p *pools) play() {
	p.t.Helper()
	for name, a := range p.agents {
		n := p.network(name)
		if n == nil || !slices.Contains(n.Finalizers, v1alpha1.Finalizer) {
			continue
		}
		held := slices.Clone(a.first)
		for _, b := range n.Spec.Blocks {
			if !b.Withdrawn || a.busy[b.CIDR] {
				if !slices.ContainsFunc(held, func(o v1alpha1.Block) bool { return o.CIDR == b.CIDR }) {
					held = append(held, v1alpha1.Block{Pool: b.Pool, CIDR: b.CIDR})
				}
			}
		}
		var requests []v1alpha1.Request
		for _, pool := range slices.Sorted(maps.Keys(a.needs)) {
			requests = append(requests, v1alpha1.Request{Pool: pool, Addresses: a.needs[pool]})
		}
		if slices.Equal(held, n.Status.Held) && slices.Equal(requests, n.Status.Requests) && len(n.Status.Addresses) > 0 {
			continue
		}
		n.Status.Held, n.Status.Requests, n.Status.Addresses = held, requests, []string{"192.0.2.1"}
		if err := p.Status().Update(p.ctx, n); err == nil {
			a.first = nil
		} else if !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
			p.t.Fatal(err)
		}
	}
	p.check()
}

// check looks whether a block is with two nodes.
func (p *pools) check() {
	p.t.Helper()
	var all v1alpha1.NodeNetworkList
	must(p.t, p.List(p.ctx, &all))
	who := map[string]string{}
	for _, n := range all.Items {
		for _, b := range slices.Concat(n.Spec.Blocks, n.Status.Held) {
			if other := who[b.CIDR]; other != "" && other != n.Name {
				p.t.Fatalf("%s is with %s and %s", b.CIDR, other, n.Name)
			}
			who[b.CIDR] = n.Name
		}
	}
}

// until plays until cond is true.
func (p *pools) until(what string, cond func() bool) {
	p.t.Helper()
	nettest.Eventually(p.t, what, func() bool {
		p.play()
		return cond()
	})
}

// fits reports whether each node has the blocks that it needs, of two addresses each, and holds them, and nothing else is given.
func (p *pools) fits(pool string) bool {
	p.t.Helper()
	blocks := int64(0)
	for name, a := range p.agents {
		n := p.network(name)
		if n == nil || len(n.Spec.Blocks) != int(a.needs[pool]+1)/2 || len(n.Status.Held) != len(n.Spec.Blocks) {
			return false
		}
		blocks += int64(len(n.Spec.Blocks))
	}
	st := p.pool(pool).Status
	return st.Blocks.Given == blocks && len(st.Pending) == 0
}

func poolOf(name string, cidrs ...string) *v1alpha1.IPPool {
	return &v1alpha1.IPPool{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.IPPoolSpec{IPv4: &v1alpha1.Range{CIDRs: cidrs, BlockSize: 31}}}
}

// The operator gives nodes blocks and takes them back, whoever of the two operators is killed, with and without leader election.
func TestOperator(t *testing.T) {
	for name, flags := range map[string][]string{"one leads": nil, "nobody leads": {"--leader-elect=false"}} {
		t.Run(name, func(t *testing.T) {
			p := startPools(t, 2, flags...)
			must(t, p.Create(p.ctx, poolOf("a", "10.200.0.0/24")))
			for i := range 12 {
				p.node(fmt.Sprintf("n%02d", i), map[string]int32{"a": int32(i % 4)})
			}
			p.until("all nodes to have what they need", func() bool { return p.fits("a") })
			for round := range 8 {
				victim := p.operators[round%2]
				for name, a := range p.agents {
					a.needs["a"] = int32((len(name) + round + int(name[2])) * 5 % 9)
				}
				p.play()
				victim.kill()
				p.play()
				victim.start()
			}
			p.until("all nodes to have what they need, after operators were killed", func() bool { return p.fits("a") })
			for _, a := range p.agents {
				a.needs["a"] = 0
			}
			p.until("all blocks to come back", func() bool { return p.pool("a").Status.Given.IPv4 == "" && p.fits("a") })
			must(t, p.Delete(p.ctx, p.pool("a")))
			p.until("the pool to go", func() bool {
				var pool v1alpha1.IPPool
				return apierrors.IsNotFound(p.Get(p.ctx, client.ObjectKey{Name: "a"}, &pool))
			})
			p.operators[0].cmd.Process.Signal(os.Interrupt)
			<-p.operators[0].ended
			if code := p.operators[0].cmd.ProcessState.ExitCode(); code != 0 {
				t.Errorf("an operator that is asked to end exits with %d", code)
			}
		})
	}
}

// columns is how docs/KUBERNETES.md shows blocks.
const columns = "-o=custom-columns=NODE:.metadata.name,BLOCKS:.spec.blocks[*].cidr,HELD:.status.held[*].cidr"

// What people can get wrong: each shows, and takes nothing from a node.
func TestOperatorFailures(t *testing.T) {
	p := startPools(t, 1)
	for name, want := range map[string]struct {
		spec    v1alpha1.IPPoolSpec
		message string
	}{
		"none":     {v1alpha1.IPPoolSpec{}, "a pool has ipv4, ipv6 or both"},
		"word":     {v1alpha1.IPPoolSpec{IPv4: &v1alpha1.Range{CIDRs: []string{"ten"}}}, "cidrs of ipv4 are IPv4 CIDRs"},
		"family":   {v1alpha1.IPPoolSpec{IPv4: &v1alpha1.Range{CIDRs: []string{"fd00::/64"}}}, "cidrs of ipv4 are IPv4 CIDRs"},
		"family6":  {v1alpha1.IPPoolSpec{IPv6: &v1alpha1.Range{CIDRs: []string{"10.0.0.0/8"}}}, "cidrs of ipv6 are IPv6 CIDRs"},
		"host":     {v1alpha1.IPPoolSpec{IPv4: &v1alpha1.Range{CIDRs: []string{"10.0.0.1/8"}}}, "by their first address"},
		"small":    {v1alpha1.IPPoolSpec{IPv4: &v1alpha1.Range{CIDRs: []string{"10.0.0.0/28"}}}, "its prefix is not longer than blockSize"},
		"wide":     {v1alpha1.IPPoolSpec{IPv4: &v1alpha1.Range{CIDRs: []string{"10.0.0.0/8"}, BlockSize: 8}}, "blockSize of ipv4 is 16 to 32"},
		"wide6":    {v1alpha1.IPPoolSpec{IPv6: &v1alpha1.Range{CIDRs: []string{"fd00::/32"}, BlockSize: 48}}, "blockSize of ipv6 is 64 to 128"},
		"twice":    {v1alpha1.IPPoolSpec{IPv4: &v1alpha1.Range{CIDRs: []string{"10.0.0.0/8", "10.0.0.0/8"}}}, "Duplicate value"},
		"negative": {v1alpha1.IPPoolSpec{IPv4: &v1alpha1.Range{CIDRs: []string{"10.0.0.0/8"}}, PreAllocate: -1}, "preAllocate"},
	} {
		if err := p.Create(p.ctx, &v1alpha1.IPPool{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: want.spec}); err == nil || !strings.Contains(err.Error(), want.message) {
			t.Errorf("%s: %v, want %q", name, err, want.message)
		}
	}
	must(t, p.Create(p.ctx, poolOf("a", "10.200.0.0/29", "10.200.1.0/29")))
	for what, change := range map[string]func(*v1alpha1.IPPool){
		"blockSize never changes": func(p *v1alpha1.IPPool) { p.Spec.IPv4.BlockSize = 30 },
		"a pool keeps its IP families": func(p *v1alpha1.IPPool) {
			p.Spec.IPv4, p.Spec.IPv6 = nil, &v1alpha1.Range{CIDRs: []string{"fd00::/64"}}
		},
		"spec.ipv4.cidrs in body should": func(p *v1alpha1.IPPool) { p.Spec.IPv4.CIDRs = []string{} },
	} {
		if err := edit(p, func() *v1alpha1.IPPool { return p.pool("a") }, change); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%v, want %q", err, what)
		}
	}
	p.node("n1", map[string]int32{"a": 4})
	p.node("n2", map[string]int32{"a": 2})
	p.until("both nodes to have what they need", func() bool { return p.fits("a") })
	before := p.network("n1")
	for _, style := range []string{"", "-o=wide", columns} {
		out := p.mustKubectl(slices.DeleteFunc([]string{"get", "nodenetworks", style}, func(s string) bool { return s == "" })...)
		t.Log("\n" + out)
		for _, b := range before.Spec.Blocks {
			if shown := strings.Contains(out, b.CIDR); shown != (style != "") {
				t.Errorf("kubectl get %s shows %s: %t", style, b.CIDR, shown)
			}
		}
	}
	if out := p.mustKubectl("get", "ippools"); !strings.Contains(out, "10.200.0.0/29") || !strings.Contains(out, "Ready") {
		t.Errorf("kubectl get ippools shows:\n%s", out)
	}

	// A NodeNetwork that is deleted under a running agent stays; one that is deleted by force comes back with its blocks.
	must(t, p.Delete(p.ctx, p.network("n1")))
	p.until("an event to say that the NodeNetwork stays", func() bool { return p.said("NodeHoldsBlocks") })
	p.agents["n1"].first = before.Status.Held
	n1, n2 := func() *v1alpha1.NodeNetwork { return p.network("n1") }, func() *v1alpha1.NodeNetwork { return p.network("n2") }
	must(t, edit(p, n1, func(n *v1alpha1.NodeNetwork) { n.Finalizers = nil }))
	p.until("the NodeNetwork to have its blocks again", func() bool {
		n := p.network("n1")
		return n != nil && n.UID != before.UID && slices.Equal(n.Spec.Blocks, before.Spec.Blocks) && p.fits("a")
	})

	// A block that somebody writes to a second node goes from there.
	must(t, edit(p, n2, func(n *v1alpha1.NodeNetwork) { n.Spec.Blocks = append(n.Spec.Blocks, before.Spec.Blocks[0]) }))
	nettest.Eventually(t, "the second claim to go", func() bool { return len(p.network("n2").Spec.Blocks) == 1 })
	p.until("an event to say so", func() bool { return p.said("ClaimedTwice") })
	p.until("all to be well again", func() bool { return p.fits("a") && p.reason("a") == "Ready" })

	// Pools over others give nothing there, and say so.
	p.apply(`{apiVersion: v1, kind: Node, metadata: {name: far}}`)
	p.mustKubectl("patch", "node", "far", "--subresource=status", "-p", `{"status": {"addresses": [{"type": "InternalIP", "address": "10.201.0.5"}]}}`)
	for name, c := range map[string]struct{ cidr, reason string }{
		"over-a": {"10.200.0.0/28", "Overlaps"}, "over-services": {"10.96.0.0/24", "OverlapsServices"}, "over-nodes": {"10.201.0.0/24", "OverlapsNodes"},
	} {
		must(t, p.Create(p.ctx, poolOf(name, c.cidr)))
		p.until(name+" to say "+c.reason, func() bool { return p.reason(name) == c.reason && p.said(c.reason) })
		if total := p.pool(name).Status.Blocks.Total; total != 0 {
			t.Errorf("%s has %d blocks", name, total)
		}
	}

	// A CIDR that goes takes no block from a pod; blocks without pods move.
	p.agents["n1"].busy[before.Spec.Blocks[0].CIDR] = true
	must(t, edit(p, func() *v1alpha1.IPPool { return p.pool("a") }, func(a *v1alpha1.IPPool) { a.Spec.IPv4.CIDRs = []string{"10.200.1.0/29"} }))
	p.until("the pool to say that it shrinks", func() bool { return p.reason("a") == "Shrunk" })
	p.until("other blocks to have moved", func() bool {
		n := p.network("n1")
		return len(n.Spec.Blocks) == 3 && n.Spec.Blocks[0].Withdrawn && n.Spec.Blocks[0].CIDR == before.Spec.Blocks[0].CIDR
	})
	clear(p.agents["n1"].busy)
	p.until("the last block to move", func() bool { return p.fits("a") && p.reason("a") == "Ready" })

	// More than there is.
	p.agents["n2"].needs["a"] = 9
	p.until("the pool to be exhausted", func() bool {
		return meta.IsStatusConditionTrue(p.pool("a").Status.Conditions, v1alpha1.ConditionExhausted)
	})
	if out := p.mustKubectl("get", "ippools", "a"); !strings.Contains(out, "EXHAUSTED") || !strings.Contains(out, "True") {
		t.Errorf("kubectl get ippools shows:\n%s", out)
	}

	// A pool in use that is deleted goes when its blocks have come back; a node that goes leaves nothing.
	p.agents["n1"].busy[p.network("n1").Spec.Blocks[0].CIDR] = true
	must(t, p.Delete(p.ctx, p.pool("a")))
	p.until("the pool to wait for its last block", func() bool {
		st := p.pool("a").Status
		return st.Blocks.Given == 1 && p.reason("a") == "Deleting"
	})
	delete(p.agents, "n1")
	must(t, p.Delete(p.ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}))
	p.until("pool and NodeNetwork to go", func() bool {
		var pool v1alpha1.IPPool
		return p.network("n1") == nil && apierrors.IsNotFound(p.Get(p.ctx, client.ObjectKey{Name: "a"}, &pool))
	})
	if words := p.operators[0].words(); strings.Contains(words, "forbidden") {
		t.Error(errors.New("the operator lacks a right: " + words))
	}
}

// reason returns why a pool is ready or not.
func (p *pools) reason(name string) string {
	if c := meta.FindStatusCondition(p.pool(name).Status.Conditions, v1alpha1.ConditionReady); c != nil {
		return c.Reason
	}
	return ""
}

// said reports whether there is an event with a reason.
func (p *pools) said(reason string) bool {
	out := p.mustKubectl("get", "events.events.k8s.io", "-A", "-o", "jsonpath={.items[*].reason}")
	return slices.Contains(strings.Fields(out), reason)
}

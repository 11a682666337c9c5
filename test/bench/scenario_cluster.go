package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-net/berth/api/v1alpha1"
)

// The pods of the simulated cluster.
const (
	ownPods           = 100  // of the node that is measured
	clusterPods       = 5000 // of all nodes
	clusterNamespaces = 50
)

// clusterMemory measures the memory of an agent in a cluster of a thousand nodes, whose API server is simulated: alone, when the others
// come, with a hundred pods attached, and when the cluster has 5,000. It measures both ways in which nodes can have addresses.
func clusterMemory(ctx context.Context, b *bench) error {
	n := b.pick(1000, 200)
	t := b.report.section("Resident memory of berthd in a cluster", "other nodes", "pods attached on this node", "pods in the cluster", "MB, with podCIDRs", "MB, with pools")
	var columns [2][]clusterSize
	for i, addresses := range []string{"podCIDRs", "pools"} {
		var err error
		if columns[i], err = b.clusterMemory(ctx, n, addresses); err != nil {
			return fmt.Errorf("with %s: %w", addresses, err)
		}
	}
	for i, s := range columns[0] {
		t.row(fmt.Sprint(s.others), fmt.Sprint(s.attached), fmt.Sprint(s.pods), mb(s.resident), mb(columns[1][i].resident))
	}
	for i, addresses := range []string{"podCIDRs", "pools"} {
		all := columns[i]
		own, last := all[len(all)-2], all[len(all)-1]
		b.report.atMost(fmt.Sprintf("berthd resident in a cluster of %d nodes, %s", n, addresses), float64(last.resident)/1e6, 50, "MB")
		b.report.atMost(fmt.Sprintf("berthd resident with %d pods in the cluster, above %d, %s", clusterPods, ownPods, addresses),
			float64(last.resident-own.resident)/1e6, 2, "MB")
	}
	return nil
}

// clusterSize is an agent's memory in a cluster of a size.
type clusterSize struct {
	others, attached, pods int
	resident               int64
}

// clusterMemory measures an agent that gets its node's addresses in one way.
func (b *bench) clusterMemory(ctx context.Context, n int, addresses string) (sizes []clusterSize, err error) {
	seg, err := segment()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, netlink.LinkDel(seg)) }()
	server := newClusterAPI()
	defer server.close()
	putNode := func(i int) {
		server.Put("nodes", clusterNode(i))
		if addresses == "pools" {
			server.Put("nodenetworks", clusterNetwork(i))
		}
	}
	if addresses == "pools" {
		server.Put("ippools", clusterPool())
	}
	for i := range clusterNamespaces {
		server.Put("namespaces", corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: clusterNamespace(i)}})
	}
	putNode(ownNode)
	a, err := startClusterAgent(ctx, b, server, "cluster-"+addresses, "routing: native, addresses: "+addresses)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, a.Stop(), a.Remove()) }()
	ps, err := b.pods.first(ownPods + 1)
	if err != nil {
		return nil, err
	}
	attach := func(i int) (time.Duration, error) {
		p := clusterPod(i, ownNode)
		server.Put("pods", p)
		return 0, a.attachSoon(ctx, ps[i], fmt.Sprintf("K8S_POD_NAMESPACE=%s;K8S_POD_NAME=%s", p.Namespace, p.Name))
	}
	size := clusterSize{}
	note := func() error {
		size.resident, err = a.Resident()
		sizes = append(sizes, size)
		return err
	}
	if _, err := attach(ownPods); err != nil { // so that the agent has heard of its addresses
		return nil, err
	}
	if _, err := a.detach(ctx, ps[ownPods:]); err != nil {
		return nil, err
	}
	if err := note(); err != nil {
		return nil, err
	}

	w, err := watchRoutes()
	if err != nil {
		return nil, err
	}
	defer w.close()
	_, err = w.until(ctx, n-1, func() error {
		for i := 1; i < n; i++ {
			putNode(ownNode + i)
		}
		return nil
	})
	size.others = n - 1
	if err = errors.Join(err, note()); err != nil {
		return nil, err
	}

	numbers := make([]int, ownPods)
	for i := range numbers {
		numbers[i] = i
	}
	_, _, err = together(apiClients, numbers, attach)
	size.attached, size.pods = ownPods, ownPods
	if err = errors.Join(err, note()); err != nil {
		return nil, err
	}

	for i := ownPods; i < clusterPods; i++ {
		server.Put("pods", clusterPod(i, ownNode+1+i%(n-1)))
	}
	if _, err := attach(ownPods); err != nil { // what the agent hears of it comes behind what it has heard of the others
		return nil, err
	}
	size.attached, size.pods = ownPods+1, clusterPods+1
	err = note()
	_, detached := a.detach(ctx, ps)
	return sizes, errors.Join(err, detached, settle(ps))
}

// attachSoon attaches a pod, as soon as the agent has heard of its node's addresses. args are CNI_ARGS.
func (a *agent) attachSoon(ctx context.Context, p *pod, args string) error {
	for end := time.Now().Add(opTimeout); ; time.Sleep(10 * time.Millisecond) {
		_, err := a.postAs(ctx, p, args)
		if err == nil || ctx.Err() != nil || time.Now().After(end) {
			return err
		}
	}
}

// clusterPool is the pool of a cluster whose nodes have one block each: their clusterCIDRs.
func clusterPool() v1alpha1.IPPool {
	p := v1alpha1.IPPool{Spec: v1alpha1.IPPoolSpec{IPv4: &v1alpha1.Range{CIDRs: []string{"10.128.0.0/9"}, BlockSize: 24}, Default: true}}
	p.Name = "default"
	return p
}

func clusterNetwork(i int) v1alpha1.NodeNetwork {
	node, block := clusterNode(i), []v1alpha1.Block{{Pool: "default", CIDR: clusterCIDR(i)}}
	n := v1alpha1.NodeNetwork{Spec: v1alpha1.NodeNetworkSpec{Blocks: block}}
	n.Name = node.Name
	if i != ownNode { // the node's agent writes its status itself
		n.Status = v1alpha1.NodeNetworkStatus{
			Held: block, Addresses: []string{node.Status.Addresses[0].Address}, Requests: []v1alpha1.Request{{Pool: "default", Addresses: 16}},
		}
	}
	return n
}

func clusterNamespace(i int) string { return fmt.Sprintf("team-%d", i) }

// clusterPod returns pod number i, which runs on a node.
func clusterPod(i, node int) corev1.Pod {
	p := corev1.Pod{Spec: corev1.PodSpec{NodeName: clusterNode(node).Name, Containers: []corev1.Container{{Name: "web", Image: "registry.example/web:1"}}}}
	p.Name, p.Namespace = fmt.Sprintf("web-%d", i), clusterNamespace(i%clusterNamespaces)
	p.Labels = map[string]string{"app": "web", "pod-template-hash": "5d4f8c7b9c"}
	return p
}

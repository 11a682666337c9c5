package kube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"strings"
	"testing"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/api/v1alpha1"
	"github.com/berth-net/berth/internal/config"
	"github.com/berth-net/berth/internal/ground"
	"github.com/berth-net/berth/internal/ipam"
	"github.com/berth-net/berth/internal/kube/kubetest"
	"github.com/berth-net/berth/internal/lease"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/peers"
)

// bareNode is a node without blocks of its own, that takes all.
type bareNode struct{ given config.Given }

func (b *bareNode) Given() config.Given { return b.given }
func (b *bareNode) Blocks() (all []ground.Block) {
	for _, l := range b.given.Leases {
		all = append(all, ground.Block{Lease: l})
	}
	return all
}
func (*bareNode) Unfit([]config.Lease) map[netip.Prefix]error    { return nil }
func (b *bareNode) Give(_ context.Context, g config.Given) error { b.given = g; return nil }
func (*bareNode) Figures() []ipam.Figures                        { return nil }
func (*bareNode) Lacking(string) error                           { return nil }
func (*bareNode) OwnPool(string) bool                            { return false }
func (*bareNode) OwnDefault() (string, error)                    { return "", errors.New("none") }

// followPools runs a Watcher of a node in a cluster with pools.
func followPools(t *testing.T, s *kubetest.Server) (*told, *lease.Keeper, *Client) {
	t.Helper()
	k := config.Kubernetes{Node: "me", Kubeconfig: s.Kubeconfig(t), Addresses: config.AddressesPools}
	c, err := Connect(k, "test")
	must(t, err)
	o := &told{nodes: map[string]peers.Node{}}
	keeper := lease.New(lease.Options{
		Node: &bareNode{}, API: c, Log: slog.New(slog.DiscardHandler), Self: func([]netip.Prefix, []netip.Addr) {}, Others: func() int { return 0 }, Now: nil,
	})
	w := New(c, Options{Kubernetes: k, Log: slog.New(slog.DiscardHandler), Given: o.Given, Others: o, Leases: keeper})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); w.Keep(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	return o, keeper, c
}

// having returns a NodeNetwork with blocks.
func having(name string, cidrs ...string) kubetest.Object {
	blocks := []any{}
	for _, c := range cidrs {
		blocks = append(blocks, kubetest.Object{"pool": "blue", "cidr": c})
	}
	return kubetest.Object{"metadata": kubetest.Object{"name": name}, "spec": kubetest.Object{"blocks": blocks}, "status": kubetest.Object{"addresses": []any{"203.0.113.66"}}}
}

// Where a cluster has pools, other nodes' blocks come from their NodeNetworks, and where these nodes are from their Nodes: no
// node's agent can say where another node is. Node.spec.podCIDRs do not count.
func TestWaysOfPools(t *testing.T) {
	s := kubetest.Serve(t)
	s.Put("nodes", node("me", "10.244.1.0/24", "192.0.2.1"))
	s.Put("nodes", node("a", "10.244.2.0/24", "192.0.2.2", "2001:db8::2"))
	s.Put("nodenetworks", having("me", "10.60.0.0/26"))
	s.Put("nodenetworks", having("a", "10.60.1.0/26", "fd00:60::/122", "10.60.0.64/26"))
	s.Put("nodenetworks", having("late", "10.60.2.0/26"))
	o, _, _ := followPools(t, s)
	const a = "true [] a [10.60.0.64/26 10.60.1.0/26 fd00:60::/122] [192.0.2.2 2001:db8::2]"
	o.want(t, a)
	s.Put("nodes", node("late", "192.0.2.3"))
	o.want(t, a+" late [10.60.2.0/26] [192.0.2.3]")
	s.Put("nodenetworks", having("late", "10.60.2.0/26", "10.60.2.64/26", "nonsense", "10.60.2.65/26"))
	o.want(t, a+" late [10.60.2.0/26 10.60.2.64/26] [192.0.2.3]")
	s.Break(http.StatusTooManyRequests)
	s.Put("nodenetworks", having("a", "10.60.3.0/26"))
	s.Delete("nodenetworks", "/late")
	s.Break(0)
	o.want(t, "true [] a [10.60.3.0/26] [192.0.2.2 2001:db8::2]")
	s.Put("nodes", node("a", "192.0.2.9"))
	o.want(t, "true [] a [10.60.3.0/26] [192.0.2.9]")
	s.Put("nodes", booted(node("a", "192.0.2.9"), "x"))
	o.want(t, "true [] a [10.60.3.0/26] [192.0.2.9] boot x")
	s.Delete("nodes", "/a")
	o.want(t, "true []")
}

// The agent learns which pool pods and namespaces ask for by their metadata alone, and of pods of its own node only. It asks for no
// whole pod. When a pool comes that looks at another label, it reads the namespaces anew.
func TestPodsAndNamespaces(t *testing.T) {
	s := kubetest.Serve(t)
	s.Put("nodes", node("me", "192.0.2.1"))
	s.Put("ippools", kubetest.Object{"metadata": kubetest.Object{"name": "blue"}, "spec": kubetest.Object{"default": true}})
	s.Put("ippools", kubetest.Object{"metadata": kubetest.Object{"name": "red"}, "spec": kubetest.Object{}})
	s.Put("namespaces", kubetest.Object{"metadata": kubetest.Object{"name": "ns", "labels": kubetest.Object{"team": "x", "other": "y"}}})
	pod := func(name, at string, annotations kubetest.Object) kubetest.Object {
		return kubetest.Object{"metadata": kubetest.Object{"name": name, "namespace": "ns", "uid": "u-" + name, "annotations": annotations}, "spec": kubetest.Object{"nodeName": at}}
	}
	s.Put("pods", pod("mine", "me", kubetest.Object{v1alpha1.AnnotationPool: "red"}))
	s.Put("pods", pod("static", "me", kubetest.Object{v1alpha1.AnnotationPool: "red", "kubernetes.io/config.mirror": "hash"}))
	s.Put("pods", pod("theirs", "you", kubetest.Object{v1alpha1.AnnotationPool: "red"}))
	_, k, _ := followPools(t, s)
	chosen := func(name, uid, want string) {
		t.Helper()
		have := ""
		nettest.Eventually(t, fmt.Sprintf("pod %s to get an address of %s", name, want), func() bool {
			s.Asked()
			have, _ = k.Choose(t.Context(), &api.Pod{Namespace: "ns", Name: name, UID: uid}, "")
			return have == want && !strings.Contains(strings.Join(s.Asked(), " "), "/ns")
		})
	}
	chosen("mine", "u-mine", "red")
	chosen("static", "hash", "red")
	if _, err := k.Choose(t.Context(), &api.Pod{Namespace: "ns", Name: "theirs", UID: "u-theirs"}, ""); err != nil {
		t.Error(err)
	} else if asked := strings.Join(s.Asked(), " "); !strings.Contains(asked, "GET /api/v1/namespaces/ns/pods/theirs") {
		t.Errorf("the agent has not asked for a pod that it has not heard of: %s", asked)
	}
	s.Put("pods", pod("mine", "me", nil))
	chosen("mine", "u-mine", "blue")
	s.Put("ippools", kubetest.Object{"metadata": kubetest.Object{"name": "amber"}, "spec": kubetest.Object{"default": true, "namespaceSelector": kubetest.Object{"matchLabels": kubetest.Object{"team": "x"}}}})
	chosen("mine", "u-mine", "amber")
	s.Put("namespaces", kubetest.Object{"metadata": kubetest.Object{"name": "ns", "annotations": kubetest.Object{v1alpha1.AnnotationPool: "red"}}})
	chosen("mine", "u-mine", "red")
}

// A status is written to the version that the agent has read, or not at all, and leaves alone what others write.
func TestWrite(t *testing.T) {
	s := kubetest.Serve(t)
	o := having("me", "10.60.0.0/26")
	o["status"] = kubetest.Object{"others": "stay"}
	s.Put("nodenetworks", o)
	_, _, c := followPools(t, s)
	n, err := c.Network(t.Context())
	must(t, err)
	status := v1alpha1.NodeNetworkStatus{Held: []v1alpha1.Block{{Pool: "blue", CIDR: "10.60.0.0/26"}}, Requests: []v1alpha1.Request{}}
	now, err := c.Write(t.Context(), n.ResourceVersion, status)
	must(t, err)
	if len(now.Status.Held) != 1 || now.ResourceVersion == n.ResourceVersion {
		t.Errorf("the NodeNetwork is %+v", now)
	}
	if all := s.Get("nodenetworks", "/me")["status"].(kubetest.Object); all["others"] != "stay" {
		t.Errorf("the status is %v", all)
	}
	if _, err := c.Write(t.Context(), n.ResourceVersion, status); !errors.Is(err, lease.ErrStale) {
		t.Errorf("writing to an old version: %v", err)
	}
	s.Delete("nodenetworks", "/me")
	if _, err := c.Write(t.Context(), now.ResourceVersion, status); !errors.Is(err, lease.ErrStale) {
		t.Errorf("writing to what is gone: %v", err)
	}
	if n, err := c.Network(t.Context()); n != nil || err != nil {
		t.Errorf("a NodeNetwork that is gone: %v, %v", n, err)
	}
	s.Break(500)
	if _, err := c.Network(t.Context()); err == nil {
		t.Error("a server that fails is believed")
	}
}

package operator

import (
	"context"
	"errors"
	"log/slog"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/rest"

	"github.com/berth-net/berth/api/v1alpha1"
	"github.com/berth-net/berth/internal/kube/kubetest"
	"github.com/berth-net/berth/internal/nettest"
)

// An operator makes a node's NodeNetwork, and gives it the blocks that its agent asks for.
func TestGivesBlocks(t *testing.T) {
	s := kubetest.Serve(t)
	var node corev1.Node
	node.Name = "a"
	s.Put("nodes", node)
	pool := v1alpha1.IPPool{Spec: v1alpha1.IPPoolSpec{IPv4: &v1alpha1.Range{CIDRs: []string{"10.60.0.0/16"}}}}
	pool.Name = "blue"
	s.Put("ippools", pool)

	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- Run(ctx, Options{
			API: &rest.Config{Host: s.URL}, Log: slog.New(slog.DiscardHandler), Nodes: labels.Everything(), Metrics: "0", Health: "0",
		})
	}()
	defer func() {
		stop()
		if err := <-ended; err != nil && !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}()

	nettest.Eventually(t, "the node to have a NodeNetwork", func() bool { return s.Get("nodenetworks", "/a") != nil })
	has := func() (blocks []v1alpha1.Block) {
		var n v1alpha1.NodeNetwork
		kubetest.Decode(s.Get("nodenetworks", "/a"), &n)
		return n.Spec.Blocks
	}
	for want := 1; want <= 3; want++ {
		s.Edit("nodenetworks", "/a", func(o kubetest.Object) {
			o["status"] = kubetest.Object{"addresses": []any{"192.0.2.1"}, "requests": []any{kubetest.Object{"pool": "blue", "addresses": 62 * want}}}
		})
		nettest.Eventually(t, "the node to have another block", func() bool { return len(has()) == want })
	}
	for i, cidr := range []string{"10.60.0.0/26", "10.60.0.64/26", "10.60.0.128/26"} {
		if got := has()[i]; got.CIDR != cidr || got.Pool != "blue" {
			t.Errorf("block %d is %v, and not %s", i, got, cidr)
		}
	}
}

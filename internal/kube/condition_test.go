package kube

import (
	"fmt"
	"net/http"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-net/berth/internal/kube/kubetest"
	"github.com/berth-net/berth/internal/nettest"
)

// with returns a Node with a condition, which replaces the one of its type.
func with(n corev1.Node, c corev1.NodeCondition) corev1.Node {
	all := []corev1.NodeCondition{c}
	for _, other := range n.Status.Conditions {
		if other.Type != c.Type {
			all = append(all, other)
		}
	}
	n.Status.Conditions = all
	return n
}

// unavailable returns a Node whose condition NetworkUnavailable has a status, as a cloud sets it.
func unavailable(n corev1.Node, status corev1.ConditionStatus) corev1.Node {
	return with(n, corev1.NodeCondition{Type: corev1.NodeNetworkUnavailable, Status: status, Reason: "NoRouteCreated"})
}

// conditions returns the conditions of the node, and how many patches the server got.
func conditions(s *kubetest.Server) (text string, patches int) {
	var n corev1.Node
	if o := s.Get("nodes", "/me"); o != nil {
		kubetest.Decode(o, &n)
	}
	for _, c := range n.Status.Conditions {
		text += fmt.Sprintf("%s=%s %s ", c.Type, c.Status, c.Reason)
	}
	return text, s.Tried()
}

// says waits until the node has conditions.
func says(t *testing.T, s *kubetest.Server, text string) {
	t.Helper()
	have := ""
	nettest.Eventually(t, text, func() bool { have, _ = conditions(s); return have == text })
}

// tried waits until the server has got a number of patches since the caller looked last.
func tried(t *testing.T, s *kubetest.Server, since, more int) {
	t.Helper()
	nettest.Eventually(t, "more patches", func() bool { return s.Tried() >= since+more })
}

const available = "NetworkUnavailable=False BerthIsUp "

// The agent says that the node has a network as soon as it has taken the node's CIDRs, and not before. It leaves the other
// conditions alone. It says so again when somebody has said something else, and when the Node was made anew.
func TestCondition(t *testing.T) {
	s := kubetest.Serve(t)
	ready := corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionFalse, Reason: "KubeletNotReady"}
	s.Put("nodes", unavailable(with(node("me", "192.0.2.1"), ready), corev1.ConditionTrue))
	o := follow(t, s)
	o.refuse(errTaken)
	nettest.Eventually(t, "the nodes to be read", func() bool { o.mu.Lock(); defer o.mu.Unlock(); return o.all })
	s.Put("nodes", unavailable(with(node("me", "10.244.1.0/24", "192.0.2.1"), ready), corev1.ConditionTrue))
	nettest.Eventually(t, "the agent to be told of its CIDRs", func() bool { return o.refused() > 0 })
	if text, patches := conditions(s); patches > 0 {
		t.Errorf("%d patches before the node has its addresses: %s", patches, text)
	}
	o.refuse(nil)
	s.Put("nodes", unavailable(with(node("me", "10.244.1.0/24", "192.0.2.1"), ready), corev1.ConditionTrue)) // which wakes it
	says(t, s, available+"Ready=False KubeletNotReady ")

	for _, status := range []corev1.ConditionStatus{corev1.ConditionTrue, corev1.ConditionUnknown} {
		s.Put("nodes", unavailable(node("me", "10.244.1.0/24", "192.0.2.1"), status))
		says(t, s, available)
	}
	s.Delete("nodes", "/me")
	s.Put("nodes", node("me", "192.0.2.1")) // which has no CIDRs yet: no other node leads there
	_, before := conditions(s)
	s.Put("nodes", node("me", "10.244.7.0/24", "192.0.2.1"))
	says(t, s, available)
	if _, after := conditions(s); after != before+1 {
		t.Errorf("the agent patched a Node without CIDRs, or patched more than once: %d, then %d", before, after)
	}
}

// What the cloud's own routes have made true is left as it is: an agent that starts writes nothing then.
func TestConditionIsRight(t *testing.T) {
	s := kubetest.Serve(t)
	s.Put("nodes", unavailable(node("me", "10.244.1.0/24", "192.0.2.1"), corev1.ConditionFalse))
	o := follow(t, s)
	o.want(t, "true [10.244.1.0/24]")
	s.Put("nodes", unavailable(node("me", "10.244.2.0/24", "192.0.2.1"), corev1.ConditionFalse))
	o.want(t, "true [10.244.2.0/24]")
	if text, patches := conditions(s); patches > 0 {
		t.Errorf("%d patches, and the node says %s", patches, text)
	}
}

// An API server that refuses patches is asked again and again, and the agent goes on to hear of nodes meanwhile.
func TestConditionIsRefused(t *testing.T) {
	s := kubetest.Serve(t)
	s.Refuse(http.StatusForbidden)
	s.Put("nodes", node("me", "10.244.1.0/24", "192.0.2.1"))
	o := follow(t, s)
	tried(t, s, 0, 3)
	s.Refuse(http.StatusTooManyRequests)
	_, since := conditions(s)
	tried(t, s, since, 2)
	s.Put("nodes", node("a", "10.244.2.0/24", "192.0.2.2"))
	o.want(t, "true [10.244.1.0/24] a [10.244.2.0/24] [192.0.2.2]")
	s.Refuse(0)
	says(t, s, available)
}

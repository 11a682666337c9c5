package kube

import (
	"encoding/json"
	"fmt"
	"net/http"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-net/berth/internal/nettest"
)

// patch is what an API server does with `kubectl patch node me --subresource=status`, as far as conditions go.
func (s *server) patch(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.patches++
	n, ok := s.nodes["me"]
	refuse := s.refuse
	s.stir()
	s.mu.Unlock()
	var body struct {
		Status struct{ Conditions []corev1.NodeCondition }
	}
	switch {
	case refuse != 0:
		w.WriteHeader(refuse)
		return
	case !ok:
		w.WriteHeader(http.StatusNotFound)
		return
	case r.Header.Get("Content-Type") != "application/strategic-merge-patch+json" || json.NewDecoder(r.Body).Decode(&body) != nil:
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	for _, c := range body.Status.Conditions {
		n = with(n, c)
	}
	s.change("MODIFIED", n)
	_ = json.NewEncoder(w).Encode(n)
}

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
func (s *server) conditions() (text string, patches int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.nodes["me"].Status.Conditions {
		text += fmt.Sprintf("%s=%s %s ", c.Type, c.Status, c.Reason)
	}
	return text, s.patches
}

func (s *server) wants(t *testing.T, text string) {
	t.Helper()
	have := ""
	nettest.Eventually(t, text, func() bool { have, _ = s.conditions(); return have == text })
}

func (s *server) refuses(status int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refuse = status
}

// asked waits until the server has got a number of patches since the caller looked last.
func (s *server) asked(t *testing.T, since, more int) {
	t.Helper()
	nettest.Eventually(t, "more patches", func() bool { _, n := s.conditions(); return n >= since+more })
}

const available = "NetworkUnavailable=False BerthIsUp "

// The agent says that the node has a network as soon as it has taken the node's CIDRs, and not before. It leaves the other
// conditions alone. It says so again when somebody has said something else, and when the Node was made anew.
func TestCondition(t *testing.T) {
	s := serve(t)
	ready := corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionFalse, Reason: "KubeletNotReady"}
	s.change("ADDED", unavailable(with(node("me", "192.0.2.1"), ready), corev1.ConditionTrue))
	o := watch(t, s)
	o.refuse(errTaken)
	nettest.Eventually(t, "the nodes to be read", func() bool { o.mu.Lock(); defer o.mu.Unlock(); return o.all })
	s.change("MODIFIED", unavailable(with(node("me", "10.244.1.0/24", "192.0.2.1"), ready), corev1.ConditionTrue))
	nettest.Eventually(t, "the agent to be told of its CIDRs", func() bool { return o.refused() > 0 })
	if text, patches := s.conditions(); patches > 0 {
		t.Errorf("%d patches before the node has its addresses: %s", patches, text)
	}
	o.refuse(nil)
	s.change("MODIFIED", unavailable(with(node("me", "10.244.1.0/24", "192.0.2.1"), ready), corev1.ConditionTrue)) // which wakes it
	s.wants(t, available+"Ready=False KubeletNotReady ")

	for _, status := range []corev1.ConditionStatus{corev1.ConditionTrue, corev1.ConditionUnknown} {
		s.change("MODIFIED", unavailable(node("me", "10.244.1.0/24", "192.0.2.1"), status))
		s.wants(t, available)
	}
	s.change("DELETED", node("me"))
	s.change("ADDED", node("me", "192.0.2.1")) // which has no CIDRs yet: no other node leads there
	_, before := s.conditions()
	s.change("MODIFIED", node("me", "10.244.7.0/24", "192.0.2.1"))
	s.wants(t, available)
	if _, after := s.conditions(); after != before+1 {
		t.Errorf("the agent patched a Node without CIDRs, or patched more than once: %d, then %d", before, after)
	}
}

// What the cloud's own routes have made true is left as it is: an agent that starts writes nothing then.
func TestConditionIsRight(t *testing.T) {
	s := serve(t)
	s.change("ADDED", unavailable(node("me", "10.244.1.0/24", "192.0.2.1"), corev1.ConditionFalse))
	o := watch(t, s)
	o.want(t, "true [10.244.1.0/24]")
	s.change("MODIFIED", unavailable(node("me", "10.244.2.0/24", "192.0.2.1"), corev1.ConditionFalse))
	o.want(t, "true [10.244.2.0/24]")
	if text, patches := s.conditions(); patches > 0 {
		t.Errorf("%d patches, and the node says %s", patches, text)
	}
}

// An API server that refuses patches is asked again and again, and the agent goes on to hear of nodes meanwhile.
func TestConditionIsRefused(t *testing.T) {
	s := serve(t)
	s.refuses(http.StatusForbidden)
	s.change("ADDED", node("me", "10.244.1.0/24", "192.0.2.1"))
	o := watch(t, s)
	s.asked(t, 0, 3)
	s.refuses(http.StatusTooManyRequests)
	_, since := s.conditions()
	s.asked(t, since, 2)
	s.change("ADDED", node("a", "10.244.2.0/24", "192.0.2.2"))
	o.want(t, "true [10.244.1.0/24] a [10.244.2.0/24] [192.0.2.2]")
	s.refuses(0)
	s.wants(t, available)
}

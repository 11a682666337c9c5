package kube

import (
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/errors"

	"github.com/berth-net/berth/internal/kube/kubetest"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/peers"
)

// A Watcher writes annotations of its own node, and takes them away; others stay. It tells of the addresses in them, its own node's
// and others', unless they are none of the node's pods.
func TestAnnotations(t *testing.T) {
	s := kubetest.Serve(t)
	me, a := node("me", "10.244.1.0/24", "fd00:244:1::/64", "192.0.2.1"), node("a", "10.244.2.0/24", "192.0.2.2")
	me.Annotations = map[string]string{"other": "stays"}
	s.Put("nodes", me)
	s.Put("nodes", a)
	w, o := watcher(t, s)
	responder := func(of string) (addrs []netip.Addr) {
		o.mu.Lock()
		defer o.mu.Unlock()
		if of == "me" {
			return o.self.Health
		}
		return o.nodes[of].Health
	}
	want := func(of string, addrs ...netip.Addr) {
		t.Helper()
		nettest.Eventually(t, of+"'s responder to be told", func() bool { return slices.Equal(responder(of), addrs) })
	}
	v4, v6 := "10.244.1.7", "fd00:244:1::7"
	must(t, w.Annotate(t.Context(), map[string]*string{AnnotationHealth4: &v4, AnnotationHealth6: &v6}))
	want("me", netip.MustParseAddr(v4), netip.MustParseAddr(v6))
	must(t, w.Annotate(t.Context(), map[string]*string{AnnotationHealth4: &v4, AnnotationHealth6: nil}))
	want("me", netip.MustParseAddr(v4))
	var now corev1.Node
	if kubetest.Decode(s.Get("nodes", "/me"), &now); now.Annotations["other"] != "stays" {
		t.Errorf("annotations: %v", now.Annotations)
	}

	for _, nonsense := range []string{"", "x", "10.244.1.7", "fd00:244:1::7", "10.244.2.7/32", "192.0.2.2"} {
		a.Annotations = map[string]string{AnnotationHealth4: nonsense, AnnotationHealth6: nonsense}
		s.Put("nodes", a)
		b := node("b"+strings.Map(func(r rune) rune { return 'x' }, nonsense), "10.244.3.0/24", "192.0.2.3")
		s.Put("nodes", b) // which is told behind a
		nettest.Eventually(t, "the next change", func() bool { o.mu.Lock(); defer o.mu.Unlock(); _, ok := o.nodes[b.Name]; return ok })
		if got := responder("a"); len(got) > 0 {
			t.Errorf("%q: %v", nonsense, got)
		}
	}
	a.Annotations = map[string]string{AnnotationHealth4: "10.244.2.7"}
	s.Put("nodes", a)
	want("a", netip.MustParseAddr("10.244.2.7"))

	s.Break(http.StatusForbidden)
	if err := w.Annotate(t.Context(), map[string]*string{AnnotationHealth4: &v4}); !errors.IsForbidden(err) || !strings.Contains(err.Error(), "patching node me") {
		t.Errorf("without the right: %v", err)
	}
	s.Break(0)
}

// A Watcher tells how nodes' WireGuard devices are reached, its own node's and others'. Nonsense counts as nothing.
func TestWireGuardAnnotations(t *testing.T) {
	s := kubetest.Serve(t)
	me, a := node("me", "10.244.1.0/24", "192.0.2.1"), node("a", "10.244.2.0/24", "192.0.2.2")
	s.Put("nodes", me)
	s.Put("nodes", a)
	w, o := watcher(t, s)
	want := func(of string, wg peers.WireGuard) {
		t.Helper()
		nettest.Eventually(t, of+"'s device to be told", func() bool {
			o.mu.Lock()
			defer o.mu.Unlock()
			if of == "me" {
				return o.self.WireGuard == wg
			}
			return o.nodes[of].WireGuard == wg
		})
	}
	key, port := "HIgo9xNzJMWLKASShiTqIybxZ0U3wGLiUeJ1PKf8ykw=", "51820"
	good := peers.WireGuard{PublicKey: key, Port: 51820}
	must(t, w.Annotate(t.Context(), map[string]*string{AnnotationWireGuardKey: &key, AnnotationWireGuardPort: &port}))
	want("me", good)
	must(t, w.Annotate(t.Context(), map[string]*string{AnnotationWireGuardKey: nil, AnnotationWireGuardPort: nil}))
	want("me", peers.WireGuard{})
	for _, bad := range []struct{ key, port string }{{key, ""}, {"", port}, {"x", port}, {key + "\n", port}, {key, "0"}, {key, "65536"}, {key, "-1"}, {strings.Repeat("A", 43) + "=", port}} {
		a.Annotations = map[string]string{AnnotationWireGuardKey: key, AnnotationWireGuardPort: port}
		s.Put("nodes", a)
		want("a", good)
		a.Annotations = map[string]string{AnnotationWireGuardKey: bad.key, AnnotationWireGuardPort: bad.port}
		s.Put("nodes", a)
		want("a", peers.WireGuard{})
	}
}

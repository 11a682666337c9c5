package kube

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/config"
	"github.com/berth-net/berth/internal/kube/kubetest"
	"github.com/berth-net/berth/internal/nettest"
)

func podOf(node, name, uid string, annotations kubetest.Object) kubetest.Object {
	return kubetest.Object{
		"metadata": kubetest.Object{"namespace": "default", "name": name, "uid": uid, "annotations": annotations}, "spec": kubetest.Object{"nodeName": node},
	}
}

// Pods are those of the node, by the UIDs that the kubelet has. Nothing is kept from one question to the next, and an API server that
// fails or lags behind what it told says nothing.
func TestPresent(t *testing.T) {
	s := kubetest.Serve(t)
	c, err := Connect(config.Kubernetes{Node: "me", Kubeconfig: s.Kubeconfig(t)}, "test")
	must(t, err)
	ask := func() (api.ClusterPods, []string, error) {
		p, err := c.Pods(context.Background())
		var uids []string
		for _, pod := range p.Pods {
			uids = append(uids, pod.Namespace+"/"+pod.Name+" "+pod.UID)
		}
		return p, uids, err
	}
	s.Put("pods", podOf("me", "web", "u1", nil))
	s.Put("pods", podOf("other", "db", "u2", nil))
	s.Put("pods", podOf("me", "static", "u3", kubetest.Object{"kubernetes.io/config.mirror": "hash"}))
	p, uids, err := ask()
	if want := []string{"default/static hash", "default/web u1"}; err != nil || !slices.Equal(uids, want) || p.Node != "me" || p.Version != "3" || !p.Enabled {
		t.Errorf("the node's pods are %q of %+v, %v", uids, p, err)
	}
	s.Keep("pods")
	s.Delete("pods", "default/web")
	if _, uids, err = ask(); err != nil || !slices.Equal(uids, []string{"default/static hash"}) {
		t.Errorf("behind a deletion, the node's pods are %q, %v", uids, err)
	}
	s.Lag("pods")
	for range 2 { // it never gives in
		if _, _, err = ask(); err == nil || !strings.Contains(err.Error(), "of version 3, is older than what it told before, of version 4") {
			t.Errorf("a list from before: %v", err)
		}
	}
	s.Lag("")
	s.Break(500)
	if _, _, err = ask(); err == nil {
		t.Error("an API server that fails says which pods there are")
	}
	s.Break(0)
	if _, uids, err = ask(); err != nil || len(uids) != 1 {
		t.Errorf("an API server that is well again: %q, %v", uids, err)
	}
}

// An API server that takes connections and never answers is an error in time.
func TestPresentHangs(t *testing.T) {
	over := make(chan struct{})
	hangs := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-over }))
	t.Cleanup(func() { close(over); hangs.Close() })
	s := &kubetest.Server{Server: hangs}
	c, err := Connect(config.Kubernetes{Node: "me", Kubeconfig: s.Kubeconfig(t)}, "test")
	must(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, err := c.Pods(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("an API server that hangs: %v", err)
	}
}

// Where the agent follows the node's pods, a list that is older than what it has heard of them proves nothing.
func TestPresentIsOlderThanHeard(t *testing.T) {
	s := kubetest.Serve(t)
	s.Put("pods", podOf("me", "web", "u1", nil))
	_, _, c := followPools(t, s)
	s.Keep("pods")
	s.Put("pods", podOf("me", "later", "u2", nil))
	nettest.Eventually(t, "the agent to have heard of the pod", func() bool { return c.pods.version() == "2" })
	s.Lag("pods")
	if _, err := c.Pods(t.Context()); err == nil || !strings.Contains(err.Error(), "older than what it told before") {
		t.Errorf("a list from before: %v", err)
	}
}

// A list proves nothing if it has no version that can be compared, or an older one than was told before it was asked for. One that is
// newer by then, because a watch was faster, does no harm.
func TestProves(t *testing.T) {
	for _, c := range []struct {
		version, before string
		want            bool
	}{{"10", "", true}, {"10", "9", true}, {"10", "10", true}, {"9", "10", false}, {"", "", false}, {"", "9", false}, {"x", "9", false}, {"0", "", false}} {
		if err := proves(c.version, c.before); (err == nil) != c.want {
			t.Errorf("a list of version %q, where %q was told before: %v", c.version, c.before, err)
		}
	}
}

package kube

import (
	"errors"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"

	nadv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"

	"github.com/berth-net/berth/internal/kube/kubetest"
	"github.com/berth-net/berth/internal/nad"
	"github.com/berth-net/berth/internal/nettest"
)

func definitionOf(namespace, name, config string) kubetest.Object {
	return kubetest.Object{
		"metadata": kubetest.Object{
			"namespace": namespace, "name": name, "annotations": kubetest.Object{nad.KeyResource: "intel.com/sriov", "other": "word"},
			"managedFields": []any{kubetest.Object{"manager": "kubectl"}}, "labels": kubetest.Object{"a": "b"},
		},
		"spec": kubetest.Object{"config": config},
	}
}

// definition waits until the agent has a definition with a configuration without a question; "": until it has none.
func definition(t *testing.T, w *Watcher, namespace, name, config string) {
	t.Helper()
	nettest.Eventually(t, "definition "+namespace+"/"+name+" "+config, func() bool {
		d := w.definitions.get(namespace, name)
		return d == nil && config == "" || d != nil && d.Spec.Config == config
	})
}

// The agent knows the definitions of all namespaces, as they come, change and go, also while the API server is away. It keeps what
// counts of them. Of one that it has not heard of it asks.
func TestDefinitions(t *testing.T) {
	s := kubetest.Serve(t)
	s.Put(definitionResource, definitionOf("default", "a", "1"))
	s.Put(definitionResource, definitionOf("other", "a", "2"))
	w, _, start := networked(t, s, false)
	d, err := w.Definition(t.Context(), "other", "a")
	if err != nil || d.Spec.Config != "2" || d.Namespace != "other" || d.Name != "a" || d.ResourceVersion != "2" {
		t.Errorf("asked for, the definition is %+v, %v", d, err)
	}
	start()
	definition(t, w, "default", "a", "1")
	definition(t, w, "other", "a", "2")
	s.Asked()
	again, err := w.Definition(t.Context(), "other", "a")
	must(t, err)
	if len(again.ManagedFields)+len(again.Labels) > 0 || again.ResourceVersion != d.ResourceVersion || len(again.Annotations) != 1 || again.Annotations[nad.KeyResource] != "intel.com/sriov" {
		t.Errorf("the agent keeps %+v", again)
	}
	if asked := s.Asked(); slices.ContainsFunc(asked, func(a string) bool { return strings.HasSuffix(a, "/a") }) {
		t.Errorf("the API server was asked %q", asked)
	}
	s.Put(definitionResource, definitionOf("default", "a", "3"))
	s.Put(definitionResource, definitionOf("default", "b", "4"))
	s.Delete(definitionResource, "other/a")
	definition(t, w, "default", "a", "3")
	definition(t, w, "default", "b", "4")
	definition(t, w, "other", "a", "")
	if _, err := w.Definition(t.Context(), "other", "a"); !errors.Is(err, ErrNoDefinition) || errors.Is(err, ErrAway) {
		t.Errorf("of a definition that is gone: %v", err)
	}

	s.Break(http.StatusServiceUnavailable)
	nettest.Eventually(t, "the watch to break", func() bool {
		return strings.Contains(strings.Join(w.Failures(), " "), "of network attachment definitions")
	})
	if d, err := w.Definition(t.Context(), "default", "b"); err != nil || d.Spec.Config != "4" {
		t.Errorf("while the API server is away: %v, %v", d, err)
	}
	s.Put(definitionResource, definitionOf("default", "a", "5"))
	s.Delete(definitionResource, "default/b")
	s.Break(0)
	definition(t, w, "default", "a", "5")
	definition(t, w, "default", "b", "")
}

// While a reflector collects all definitions, as much of each is in memory as later.
func TestDefinitionTransformer(t *testing.T) {
	var d nadv1.NetworkAttachmentDefinition
	kubetest.Decode(definitionOf("default", "a", "1"), &d)
	left, err := new(definitionStore).Transformer()(&d)
	must(t, err)
	if !reflect.DeepEqual(left, lessOf(&d)) || len(d.ManagedFields) != 1 {
		t.Errorf("of %+v is left %+v", d, left)
	}
}

// A definition that is longer than anybody needs does not stay in memory, and is asked for each time.
func TestLongDefinition(t *testing.T) {
	s := kubetest.Serve(t)
	long := strings.Repeat(" ", longestKept+1)
	s.Put(definitionResource, definitionOf("default", "a", long))
	s.Put(definitionResource, definitionOf("default", "b", long[1:]))
	w, _, start := networked(t, s, false)
	start()
	definition(t, w, "default", "b", long[1:])
	s.Put(definitionResource, definitionOf("default", "b", long))
	definition(t, w, "default", "b", "")
	for _, name := range []string{"a", "b"} {
		if w.definitions.get("default", name) != nil {
			t.Errorf("definition %s is kept", name)
		}
		if d, err := w.Definition(t.Context(), "default", name); err != nil || d.Spec.Config != long {
			t.Errorf("definition %s: %v", name, err)
		}
	}
}

// A cluster without the CustomResourceDefinition has no definitions, which shows among what fails. When it comes, the agent knows them.
func TestNoDefinitions(t *testing.T) {
	s := kubetest.Serve(t)
	s.Lack(definitionResource)
	s.Put("pods", podOf("me", "web", "u1", asks("x", "")))
	w, _, start := networked(t, s, false)
	start()
	heard(t, w, "web", "u1", "x")
	nettest.Eventually(t, "the failure to show", func() bool {
		all := w.Failures()
		return len(all) == 1 && strings.Contains(all[0], "of network attachment definitions since 20")
	})
	if _, err := w.Definition(t.Context(), "default", "a"); !errors.Is(err, ErrNoDefinition) {
		t.Errorf("a definition of a cluster that knows none: %v", err)
	}
	s.Put(definitionResource, definitionOf("default", "a", "1"))
	s.Lack("")
	if d, err := w.Definition(t.Context(), "default", "a"); err != nil || d.Spec.Config != "1" {
		t.Errorf("as soon as the cluster knows them: %v, %v", d, err)
	}
	definition(t, w, "default", "a", "1")
	if all := w.Failures(); len(all) > 0 {
		t.Errorf("what fails is %q", all)
	}
}

// An API server that lags behind lists definitions from before: what the agent has stays.
func TestOldDefinitions(t *testing.T) {
	s := kubetest.Serve(t)
	s.Put(definitionResource, definitionOf("default", "a", "1"))
	w, _, start := networked(t, s, false)
	start()
	definition(t, w, "default", "a", "1")
	s.Keep(definitionResource)
	s.Put(definitionResource, definitionOf("default", "a", "2"))
	definition(t, w, "default", "a", "2")
	s.Lag(definitionResource)
	nettest.Eventually(t, "the old list to be refused", func() bool {
		return strings.Contains(strings.Join(w.Failures(), " "), "older than what it told before")
	})
	definition(t, w, "default", "a", "2")
}

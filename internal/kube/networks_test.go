package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/config"
	"github.com/berth-net/berth/internal/kube/kubetest"
	"github.com/berth-net/berth/internal/lease"
	"github.com/berth-net/berth/internal/nad"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/peers"
)

// hotplugs notes which pods a Watcher tells Asked of.
type hotplugs struct {
	mu  sync.Mutex
	all []string
}

func (h *hotplugs) note(pod api.Pod) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.all = append(h.all, pod.Name+" "+pod.UID)
}

func (h *hotplugs) want(t *testing.T, want ...string) {
	t.Helper()
	var have []string
	nettest.Eventually(t, fmt.Sprintf("just %q to be told", want), func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		have = slices.Clone(h.all)
		return len(have) >= len(want)
	})
	if !slices.Equal(have, want) {
		t.Fatalf("%q are told, and not %q", have, want)
	}
}

// networked returns a Watcher of a cluster whose pods may ask for several networks, with addresses of pools or not. start starts it.
func networked(t *testing.T, s *kubetest.Server, pools bool) (w *Watcher, h *hotplugs, start func()) {
	t.Helper()
	k := config.Kubernetes{Node: "me", Kubeconfig: s.Kubeconfig(t), Networks: true, Addresses: config.AddressesPodCIDRs}
	if pools {
		k.Addresses = config.AddressesPools
	}
	c, err := Connect(k, "test")
	must(t, err)
	o, h := &told{nodes: map[string]peers.Node{}}, &hotplugs{}
	with := Options{Kubernetes: k, Log: slog.New(slog.DiscardHandler), Given: o.Given, InForce: o.InForce, Others: o, Asked: h.note}
	if pools {
		with.Leases = lease.New(lease.Options{
			Node: &bareNode{}, API: c, Log: with.Log, Self: func([]netip.Prefix, []netip.Addr) {}, Others: func() int { return 0 },
		})
	}
	w = New(c, with)
	return w, h, func() {
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan struct{})
		go func() { defer close(done); w.Keep(ctx) }()
		t.Cleanup(func() { cancel(); <-done })
	}
}

// asks returns a pod's annotations that ask for networks.
func asks(nets, def string) kubetest.Object {
	return kubetest.Object{nad.KeyNetworks: nets, nad.KeyDefault: def}
}

// heard waits until the agent has heard that a pod asks for networks.
func heard(t *testing.T, w *Watcher, name, uid, nets string) {
	t.Helper()
	nettest.Eventually(t, fmt.Sprintf("the agent to have heard that pod %s asks for %q", name, nets), func() bool {
		is, known := w.wishes.of(&api.Pod{Namespace: "default", Name: name, UID: uid})
		return known && is.nets == nets
	})
}

func ofPod(name, uid string) *api.Pod { return &api.Pod{Namespace: "default", Name: name, UID: uid} }

// What a pod asks for is known without a question, by one reflector of pods alone, whoever else wants to know of the pods. Of a pod
// that the agent has not heard of it asks the API server. It goes by the UID that the runtime knows.
func TestAsks(t *testing.T) {
	for _, pools := range []bool{false, true} {
		t.Run(fmt.Sprintf("pools=%v", pools), func(t *testing.T) {
			s := kubetest.Serve(t)
			s.Put("nodes", node("me", "10.244.1.0/24", "192.0.2.1"))
			s.Put("pods", podOf("me", "web", "u1", asks("a,b", "c")))
			s.Put("pods", podOf("me", "plain", "u2", nil))
			static := asks("d", "")
			static["kubernetes.io/config.mirror"] = "hash"
			s.Put("pods", podOf("me", "static", "u3", static))
			s.Put("pods", podOf("you", "far", "u4", asks("e", "")))
			w, _, start := networked(t, s, pools)
			start()
			heard(t, w, "web", "u1", "a,b")
			follows := 0
			nettest.Eventually(t, "a watch of pods", func() bool {
				for _, asked := range s.Asked() {
					if asked == "GET /api/v1/pods" {
						follows++
					}
				}
				return follows >= 3 // a watch that this server refuses, a list, a watch
			})
			for _, c := range []struct{ name, uid, nets, def string }{
				{"web", "u1", "a,b", "c"}, {"web", "", "a,b", "c"}, {"plain", "u2", "", ""}, {"static", "hash", "d", ""},
			} {
				if nets, def, err := w.Asks(t.Context(), ofPod(c.name, c.uid)); nets != c.nets || def != c.def || err != nil {
					t.Errorf("pod %s %s asks for %q and %q, %v; expected %q and %q", c.name, c.uid, nets, def, err, c.nets, c.def)
				}
			}
			if asked := s.Asked(); slices.ContainsFunc(asked, func(a string) bool { return strings.Contains(a, "pods") }) || follows > 3 {
				t.Errorf("besides %d times for all pods, the API server was asked %q", follows, asked)
			}
			if nets, _, err := w.Asks(t.Context(), ofPod("far", "u4")); nets != "e" || err != nil || !slices.Contains(s.Asked(), "GET /api/v1/namespaces/default/pods/far") {
				t.Errorf("a pod that the agent has not heard of asks for %q, %v", nets, err)
			}
			for _, gone := range []*api.Pod{ofPod("web", "u9"), ofPod("static", "u3"), ofPod("none", "u1")} {
				if _, _, err := w.Asks(t.Context(), gone); !errors.Is(err, ErrPodGone) || errors.Is(err, ErrAway) {
					t.Errorf("pod %s %s: %v", gone.Name, gone.UID, err)
				}
			}
			if pools {
				nettest.Eventually(t, "the pools to know of the pod, too", func() bool {
					s.Asked()
					_, _ = w.Leases.Choose(t.Context(), ofPod("web", "u1"), "x")
					return !slices.ContainsFunc(s.Asked(), func(a string) bool { return strings.HasSuffix(a, "/pods/web") })
				})
			}
		})
	}
}

// An agent whose pods may not ask for networks asks the API server for neither pods nor definitions.
func TestNetworksOff(t *testing.T) {
	s := kubetest.Serve(t)
	s.Put("nodes", node("me", "10.244.1.0/24", "192.0.2.1"))
	o := follow(t, s)
	o.want(t, "true [10.244.1.0/24]")
	s.Put("nodes", node("a", "10.244.2.0/24", "192.0.2.2"))
	o.want(t, "true [10.244.1.0/24] a [10.244.2.0/24] [192.0.2.2]")
	for _, asked := range s.Asked() {
		if !strings.Contains(asked, "/nodes") {
			t.Errorf("the API server was asked %s", asked)
		}
	}
}

// The agent's cache has the pod's predecessor of the same name, because the API server's watches lag behind: the answer is about the
// pod. When it is the other way round, the predecessor is gone.
func TestAsksOfSuccessor(t *testing.T) {
	s := kubetest.Serve(t)
	s.Put("pods", podOf("me", "web-0", "u1", asks("old", "")))
	w, h, start := networked(t, s, false)
	start()
	heard(t, w, "web-0", "u1", "old")
	s.Keep("pods")
	s.Lag("pods")
	s.Delete("pods", "default/web-0")
	s.Put("pods", podOf("me", "web-0", "u2", asks("new", "")))
	if nets, _, err := w.Asks(t.Context(), ofPod("web-0", "u2")); nets != "new" || err != nil {
		t.Errorf("the successor asks for %q, %v", nets, err)
	}
	s.Lag("")
	if _, _, err := w.Asks(t.Context(), ofPod("web-0", "u1")); !errors.Is(err, ErrPodGone) {
		t.Errorf("of the predecessor: %v", err)
	}
	s.Edit("pods", "default/web-0", func(o kubetest.Object) { o["metadata"].(kubetest.Object)["annotations"] = asks("newer", "") })
	h.want(t, "web-0 u2")
}

// Asked is told of pods that ask for something else, also if that changed while the API server was away, and of no other change.
func TestAsked(t *testing.T) {
	s := kubetest.Serve(t)
	change := func(name string, annotations kubetest.Object) {
		s.Edit("pods", "default/"+name, func(o kubetest.Object) { o["metadata"].(kubetest.Object)["annotations"] = annotations })
	}
	for _, name := range []string{"a", "b", "c", "d"} {
		s.Put("pods", podOf("me", name, "u-"+name, asks("x", "")))
	}
	w, h, start := networked(t, s, false)
	start()
	heard(t, w, "a", "u-a", "x")
	other := asks("x", "")
	other[nad.KeyStatus] = "[]"
	change("a", other)
	s.Put("pods", podOf("me", "new", "u-new", asks("y", "")))
	s.Delete("pods", "default/d")
	s.Put("pods", podOf("me", "d", "u-d2", asks("y", "")))
	change("b", asks("x", "y"))
	h.want(t, "b u-b")
	change("b", nil)
	h.want(t, "b u-b", "b u-b")
	if nets, def, err := w.Asks(t.Context(), ofPod("b", "u-b")); nets != "" || def != "" || err != nil {
		t.Errorf("after its annotations are taken away, it asks for %q and %q, %v", nets, def, err)
	}

	s.Break(http.StatusInternalServerError)
	nettest.Eventually(t, "the watch to break", func() bool {
		return slices.ContainsFunc(w.Failures(), func(f string) bool { return strings.Contains(f, "of pods") })
	})
	change("c", asks("", ""))
	s.Delete("pods", "default/new")
	s.Put("pods", podOf("me", "new", "u-new2", asks("z", "")))
	s.Delete("pods", "default/b")
	s.Break(0)
	h.want(t, "b u-b", "b u-b", "c u-c")
	heard(t, w, "new", "u-new2", "z")
	if _, _, err := w.Asks(t.Context(), ofPod("b", "u-b")); !errors.Is(err, ErrPodGone) {
		t.Errorf("of a pod that went while the API server was away: %v", err)
	}
}

// What an ADD has gone by is what later changes are compared with, even if the reflector had not heard of the pod then.
func TestAskedAfterQuestion(t *testing.T) {
	s := kubetest.Serve(t)
	s.Put("pods", podOf("me", "web", "u1", asks("old", "")))
	w, h, start := networked(t, s, false)
	if nets, _, err := w.Asks(t.Context(), ofPod("web", "u1")); nets != "old" || err != nil {
		t.Fatalf("the pod asks for %q, %v", nets, err)
	}
	s.Edit("pods", "default/web", func(o kubetest.Object) { o["metadata"].(kubetest.Object)["annotations"] = asks("new", "") })
	start()
	h.want(t, "web u1")
}

// The API server tells of pods by several ways, and what it has told last counts, unless its store was restored.
func TestWishesAge(t *testing.T) {
	at := func(name, uid, version, nets string) wish {
		return wish{pod: api.Pod{Name: name, UID: uid}, version: version, nets: nets}
	}
	w := New(&Client{}, Options{Log: slog.New(slog.DiscardHandler)})
	s := &w.wishes
	want := func(when string, wishes ...string) {
		t.Helper()
		var have []string
		for _, is := range s.all {
			have = append(have, is.pod.Name+" "+is.pod.UID+" "+is.nets)
		}
		if slices.Sort(have); !slices.Equal(have, wishes) {
			t.Errorf("%s: %q, expected %q", when, have, wishes)
		}
	}
	replace := func(version string, wishes ...wish) []api.Pod {
		t.Helper()
		changed, err := s.replace(wishes, version)
		must(t, err)
		return changed
	}
	s.learn(at("a", "1", "5", "new"))
	if changed := replace("4", at("a", "1", "3", "old"), at("b", "1", "4", "x")); len(changed) > 0 {
		t.Errorf("an older list changes %v", changed)
	}
	want("after a list from before", "a 1 new", "b 1 x")
	if s.put(at("a", "1", "4", "old")) {
		t.Error("an older event changes a pod")
	}
	s.learn(at("c", "1", "4", "x"))
	want("after an answer from before what the reflector has told", "a 1 new", "b 1 x")
	s.learn(at("c", "1", "9", "x"))
	s.learn(at("c", "1", "8", "older"))
	s.learn(at("b", "2", "9", "y"))
	s.put(at("b", "1", "6", "x"))
	s.drop(at("b", "1", "7", "x"))
	want("after the end of the predecessor of a pod", "a 1 new", "b 2 y", "c 1 x")
	replace("8")
	want("after a list that lacks all that were there", "b 2 y", "c 1 x")
	if changed := replace("9", at("b", "2", "9", "z"), at("d", "1", "9", "x")); len(changed) != 1 || changed[0].Name != "b" {
		t.Errorf("what changed is %v", changed)
	}
	want("after a list that is newer", "b 2 z", "d 1 x")
	if _, err := s.replace([]wish{at("a", "1", "2", "x")}, "3"); err == nil {
		t.Error("a list of old is taken")
	}
	s.since = s.since.Add(-olderFor)
	replace("3", at("b", "2", "2", "first"))
	want("after the store was restored", "b 2 first")
}

// An API server that does not answer, or cannot, is away: within the limit, whatever is asked. One that refuses is not.
func TestAway(t *testing.T) {
	over := make(chan struct{})
	hangs := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-over }))
	t.Cleanup(func() { close(over); hangs.Close() })
	closed := httptest.NewServer(http.NotFoundHandler())
	closed.Close()
	status := func(code int) *httptest.Server {
		s := kubetest.Serve(t)
		s.Break(code)
		return s.Server
	}
	for name, c := range map[string]struct {
		at   *httptest.Server
		away bool
	}{
		"hangs": {hangs, true}, "closed": {closed, true}, "500": {status(500), true}, "503": {status(503), true}, "429": {status(429), true},
		"403": {status(403), false}, "401": {status(401), false},
	} {
		t.Run(name, func(t *testing.T) {
			w, _, _ := networked(t, &kubetest.Server{Server: c.at}, false)
			if name == "hangs" {
				w.asking = 100 * time.Millisecond
			}
			_, _, asks := w.Asks(t.Context(), ofPod("web", "u1"))
			_, definition := w.Definition(t.Context(), "default", "net")
			writing := w.WriteStatus(t.Context(), ofPod("web", "u1"), "[]")
			w.wishes.learn(wish{pod: *ofPod("web", "u1"), object: "u1", version: "1"})
			known := w.WriteStatus(t.Context(), ofPod("web", "u1"), "[]")
			for what, err := range map[string]error{"asks": asks, "definition": definition, "writing": writing, "writing to a known pod": known} {
				if errors.Is(err, ErrAway) != c.away || err == nil || errors.Is(err, ErrPodGone) || errors.Is(err, ErrNoDefinition) {
					t.Errorf("%s: %v", what, err)
				}
			}
		})
	}
}

// A status gets into the annotation of this very pod, by a request that changes nothing else, and out of it again.
func TestWriteStatus(t *testing.T) {
	s := kubetest.Serve(t)
	s.Put("pods", podOf("me", "web", "u1", asks("x", "")))
	static := kubetest.Object{"kubernetes.io/config.mirror": "hash"}
	s.Put("pods", podOf("me", "static", "u2", static))
	w, h, start := networked(t, s, false)
	start()
	heard(t, w, "web", "u1", "x")
	status := func(name string) any {
		raw, err := json.Marshal(s.Get("pods", "default/"+name)["metadata"].(kubetest.Object)["annotations"])
		must(t, err)
		all := map[string]string{}
		must(t, json.Unmarshal(raw, &all))
		if name == "web" && all[nad.KeyNetworks] != "x" {
			t.Errorf("the other annotations are %v", all)
		}
		if text, has := all[nad.KeyStatus]; has {
			return text
		}
		return nil
	}
	for _, c := range []struct{ name, uid string }{{"web", "u1"}, {"web", ""}, {"static", "hash"}} {
		s.Asked()
		must(t, w.WriteStatus(t.Context(), ofPod(c.name, c.uid), `[{"name":"x"}]`))
		if is := status(c.name); is != `[{"name":"x"}]` {
			t.Errorf("the status of %s is %v", c.name, is)
		}
		of := "/api/v1/namespaces/default/pods/" + c.name
		others := func(asked string) bool { return !strings.Contains(asked, of) } // what reflectors ask
		if asked := slices.DeleteFunc(s.Asked(), others); !slices.Equal(asked, []string{"PATCH " + of + "/status"}) {
			t.Errorf("the API server was asked %q", asked)
		}
		must(t, w.WriteStatus(t.Context(), ofPod(c.name, c.uid), ""))
		if is := status(c.name); is != nil {
			t.Errorf("the status of %s is %v, and was taken away", c.name, is)
		}
	}
	h.want(t)
}

// A status gets to no other pod than its own. A static pod's object may be made anew: the pod stays the same one.
func TestWriteStatusOfAnother(t *testing.T) {
	s := kubetest.Serve(t)
	s.Put("pods", podOf("me", "web", "u1", nil))
	s.Put("pods", podOf("me", "static", "u2", kubetest.Object{"kubernetes.io/config.mirror": "hash"}))
	w, _, start := networked(t, s, false)
	start()
	heard(t, w, "static", "hash", "")
	s.Keep("pods")
	s.Lag("pods")
	for _, name := range []string{"web", "static"} {
		s.Delete("pods", "default/"+name)
	}
	write := func(name, uid string) error { return w.WriteStatus(t.Context(), ofPod(name, uid), "[]") }
	if err := write("web", "u1"); !errors.Is(err, ErrPodGone) {
		t.Errorf("of a pod that is gone: %v", err)
	}
	s.Put("pods", podOf("me", "web", "u3", nil))
	s.Put("pods", podOf("me", "static", "u4", kubetest.Object{"kubernetes.io/config.mirror": "hash"}))
	if err := write("web", "u1"); !errors.Is(err, ErrPodGone) || errors.Is(err, ErrAway) {
		t.Errorf("of a pod that has a successor: %v", err)
	}
	if have := s.Get("pods", "default/web")["metadata"].(kubetest.Object)["annotations"]; have != nil {
		t.Errorf("the successor has %v", have)
	}
	if err := write("static", "hash"); err != nil {
		t.Errorf("of a static pod whose object was made anew: %v", err)
	}
	if err := write("far", "u9"); !errors.Is(err, ErrPodGone) {
		t.Errorf("of a pod that nobody has heard of: %v", err)
	}
	s.Refuse(http.StatusConflict)
	if err := write("web", "u3"); !apierrors.IsConflict(err) || errors.Is(err, ErrPodGone) || errors.Is(err, ErrAway) {
		t.Errorf("of a pod that is there, and changes all the time: %v", err)
	}
}

package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-net/berth/internal/config"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/peers"
)

var must = nettest.Must

// server is an API server that knows nodes, and what clients have to expect of it: it fails, answers slowly, and forgets
// old versions.
type server struct {
	*httptest.Server
	mu      sync.Mutex
	version int
	nodes   map[string]corev1.Node
	events  []metav1.WatchEvent // since the beginning; event i made version i+1
	fail    int                 // the status of all answers; 0: it serves
	lags    *corev1.NodeList    // what it lists, and there are no watches; nil: it serves
	lists   int                 // how many it has answered
	news    chan struct{}       // closed at the next change
}

func serve(t *testing.T) *server {
	s := &server{nodes: map[string]corev1.Node{}, news: make(chan struct{})}
	s.Server = httptest.NewServer(s)
	t.Cleanup(s.Close)
	t.Cleanup(s.CloseClientConnections)
	return s
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	fail, lags := s.fail, s.lags
	s.mu.Unlock()
	q := r.URL.Query()
	w.Header().Set("Content-Type", "application/json")
	switch {
	case r.Method != http.MethodGet || r.URL.Path != "/api/v1/nodes":
		w.WriteHeader(http.StatusForbidden)
	case fail != 0:
		w.WriteHeader(fail)
	case q.Get("sendInitialEvents") == "true":
		w.WriteHeader(http.StatusUnprocessableEntity) // as a server before Kubernetes 1.27
	case q.Get("watch") != "" && lags != nil:
		w.WriteHeader(http.StatusInternalServerError)
	case q.Get("watch") != "":
		since, _ := strconv.Atoi(q.Get("resourceVersion"))
		s.watch(w, r.Context(), since)
	default:
		s.mu.Lock()
		list := s.list()
		if s.lists++; lags != nil {
			list = *lags
		}
		s.mu.Unlock()
		_ = json.NewEncoder(w).Encode(list)
	}
}

// list returns all nodes. The caller holds s.mu.
func (s *server) list() corev1.NodeList {
	list := corev1.NodeList{TypeMeta: metav1.TypeMeta{Kind: "NodeList", APIVersion: "v1"}}
	list.ResourceVersion = fmt.Sprint(s.version)
	for _, n := range s.nodes {
		list.Items = append(list.Items, n)
	}
	return list
}

// listed returns how many lists the server has answered.
func (s *server) listed() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lists
}

func (s *server) watch(w http.ResponseWriter, ctx context.Context, since int) {
	for {
		s.mu.Lock()
		var later []metav1.WatchEvent
		if since < len(s.events) {
			later = s.events[since:]
		}
		news, fail := s.news, s.fail != 0 || s.lags != nil
		s.mu.Unlock()
		if fail {
			return
		}
		for _, e := range later {
			_ = json.NewEncoder(w).Encode(e)
			since++
		}
		w.(http.Flusher).Flush()
		select {
		case <-news:
		case <-ctx.Done():
			return
		}
	}
}

// change makes one change: typ is ADDED, MODIFIED or DELETED.
func (s *server) change(typ string, n corev1.Node) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	n.ResourceVersion = fmt.Sprint(s.version)
	if s.nodes[n.Name] = n; typ == "DELETED" {
		delete(s.nodes, n.Name)
	}
	e := metav1.WatchEvent{Type: typ}
	e.Object.Raw, _ = json.Marshal(n)
	s.events = append(s.events, e)
	s.stir()
}

// breaks has the server answer with a status, 0: as it should. Watches end.
func (s *server) breaks(status int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fail = status
	s.stir()
}

func (s *server) stir() {
	close(s.news)
	s.news = make(chan struct{})
}

// node returns a Node: texts are CIDRs and addresses.
func node(name string, texts ...string) corev1.Node {
	n := corev1.Node{TypeMeta: metav1.TypeMeta{Kind: "Node", APIVersion: "v1"}}
	n.Name = name
	for _, s := range texts {
		if _, err := netip.ParseAddr(s); err == nil {
			n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: s})
		} else {
			n.Spec.PodCIDRs = append(n.Spec.PodCIDRs, s)
		}
	}
	return n
}

// told notes what a Watcher has told.
type told struct {
	self  peers.Node
	mu    sync.Mutex
	all   bool
	nodes map[string]peers.Node
	given []netip.Prefix
}

func (o *told) All(nodes []peers.Node) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.all, o.nodes = true, map[string]peers.Node{}
	for _, n := range nodes {
		o.nodes[n.Name] = n
	}
}

func (o *told) Self(n peers.Node) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.self = n
}

func (o *told) Put(n peers.Node) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.nodes[n.Name] = n
}

func (o *told) Drop(name string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.nodes, name)
}

func (o *told) Given(_ context.Context, cidrs []netip.Prefix) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.given = cidrs
	return nil
}

func (o *told) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	text := fmt.Sprint(o.all, " ", o.given)
	if !slices.Equal(o.self.CIDRs, o.given) || len(o.given) > 0 && !slices.Contains(o.self.Addresses, netip.MustParseAddr("192.0.2.1")) {
		text += fmt.Sprint(" self ", o.self)
	}
	var names []string
	for name := range o.nodes {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		text += fmt.Sprint(" ", name, " ", o.nodes[name].CIDRs, " ", o.nodes[name].Addresses)
	}
	return text
}

func watch(t *testing.T, s *server) *told {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	must(t, os.WriteFile(path, fmt.Appendf(nil, `{"clusters":[{"name":"c","cluster":{"server":%q}}],"contexts":[{"name":"c","context":{"cluster":"c"}}],"current-context":"c"}`, s.URL), 0o600))
	o := &told{nodes: map[string]peers.Node{}}
	w, err := New(Options{
		Kubernetes: config.Kubernetes{Node: "me", Kubeconfig: path}, Agent: "test", Log: slog.New(slog.DiscardHandler), Given: o.Given, Others: o,
	})
	must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); w.Keep(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	return o
}

func (o *told) want(t *testing.T, text string) {
	t.Helper()
	have := ""
	nettest.Eventually(t, text, func() bool { have = o.String(); return have == text })
}

// A Watcher tells of its own node's CIDRs and of other nodes that have CIDRs and an address, as they come, change and go,
// also across an API server that fails, and that has changed meanwhile.
func TestNodes(t *testing.T) {
	s := serve(t)
	s.change("ADDED", node("me", "10.244.1.0/24", "fd00:244:1::/64", "192.0.2.1"))
	s.change("ADDED", node("a", "10.244.2.0/24", "192.0.2.2", "2001:db8::2", "192.0.2.22"))
	s.change("ADDED", node("new"))
	o := watch(t, s)
	const me = "true [10.244.1.0/24 fd00:244:1::/64]"
	o.want(t, me+" a [10.244.2.0/24] [192.0.2.2 2001:db8::2]")
	s.change("MODIFIED", node("new", "10.244.3.0/24", "192.0.2.3"))
	s.change("MODIFIED", node("a", "10.244.2.0/24", "192.0.2.4"))
	o.want(t, me+" a [10.244.2.0/24] [192.0.2.4] new [10.244.3.0/24] [192.0.2.3]")
	for _, status := range []int{500, 429, 403} {
		s.breaks(status)
	}
	s.change("DELETED", node("a"))
	s.change("MODIFIED", node("me")) // which takes nothing from the node: the Node may have been made anew
	s.breaks(0)
	o.want(t, me+" new [10.244.3.0/24] [192.0.2.3]")
	s.change("MODIFIED", node("new", "10.244.3.0/24", "nonsense", "192.0.2.3"))
	s.change("ADDED", node("b", "10.244.4.0/24", "192.0.2.5"))
	o.want(t, me+" b [10.244.4.0/24] [192.0.2.5]")
	s.change("MODIFIED", node("me", "10.244.9.0/24", "192.0.2.1"))
	o.want(t, "true [10.244.9.0/24] b [10.244.4.0/24] [192.0.2.5]")
}

// An API server that lags behind answers with a list from before: nodes that have come stay, and those that have gone stay away.
func TestOldList(t *testing.T) {
	s := serve(t)
	s.change("ADDED", node("me", "10.244.1.0/24", "192.0.2.1"))
	s.change("ADDED", node("a", "10.244.2.0/24", "192.0.2.2"))
	o := watch(t, s)
	const me = "true [10.244.1.0/24]"
	o.want(t, me+" a [10.244.2.0/24] [192.0.2.2]")
	s.mu.Lock()
	old := s.list()
	s.mu.Unlock()
	s.change("DELETED", node("a"))
	s.change("ADDED", node("b", "10.244.3.0/24", "192.0.2.3"))
	const now = me + " b [10.244.3.0/24] [192.0.2.3]"
	o.want(t, now)
	s.mu.Lock()
	s.lags = &old
	s.stir()
	s.mu.Unlock()
	before := s.listed()
	nettest.Eventually(t, "the watcher to have asked for another list", func() bool { return s.listed() >= before+3 })
	o.want(t, now)
	s.mu.Lock()
	s.lags = nil
	s.mu.Unlock()
	s.change("ADDED", node("c", "10.244.4.0/24", "192.0.2.4"))
	o.want(t, now+" c [10.244.4.0/24] [192.0.2.4]")
}

// Lists that are older for long are taken for right: the cluster's store was restored from a backup.
func TestOldListForLong(t *testing.T) {
	s, now := nodeStore{Watcher: &Watcher{Options: Options{Log: slog.New(slog.DiscardHandler)}}}, time.Now()
	for _, c := range []struct {
		version string
		after   time.Duration
		taken   bool
	}{{"9", 0, true}, {"8", 0, false}, {"8", olderFor - 1, false}, {"10", olderFor, true}, {"8", olderFor, false}, {"7", 2 * olderFor, true}} {
		err := s.fresh(c.version, now.Add(c.after))
		if (err == nil) != c.taken {
			t.Errorf("a list of version %s, when the newest is %s, after %s: %v", c.version, s.newest, c.after, err)
		}
		if err == nil {
			s.newest = c.version
		}
	}
}

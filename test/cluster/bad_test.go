package cluster

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/berth-net/berth/internal/nettest"
)

// front stands between Berth's agents and the API server, and can be bad.
type front struct {
	*httptest.Server
	t     testing.TB
	proxy *httputil.ReverseProxy

	mu    sync.Mutex
	bad   badness        // what it does with requests; nil: it hands them on
	over  chan struct{}  // closed when it is no longer so bad
	asked map[string]int // how many requests there were since then, by kind: "list", "watch"
}

// badness answers a request, or reports that the API server has to. It may wait until over is closed.
type badness func(w http.ResponseWriter, r *http.Request, over <-chan struct{}) (answered bool)

// kind says whether a request is a watch or a list. A watch that begins with all that there is comes in a list's place.
func kind(r *http.Request) string {
	if q := r.URL.Query(); q.Get("watch") != "" && q.Get("sendInitialEvents") != "true" {
		return "watch"
	}
	return "list"
}

// startFront starts a front of the API server, and has agents that start later use it.
func (c *control) startFront() *front {
	c.t.Helper()
	l, err := net.Listen("tcp", net.JoinHostPort(world4, "0"))
	must(c.t, err)
	f := &front{t: c.t, over: make(chan struct{}), asked: map[string]int{}}
	all := x509.NewCertPool()
	all.AppendCertsFromPEM(c.ca)
	f.proxy = httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "https", Host: world4 + ":6443"})
	f.proxy.Transport = &http.Transport{TLSClientConfig: &tls.Config{RootCAs: all}, ForceAttemptHTTP2: true}
	f.proxy.FlushInterval = -1
	f.proxy.ErrorLog = log.New(io.Discard, "", 0) // requests that agents give up are none of the test's errors
	cert, err := tls.LoadX509KeyPair(filepath.Join(c.disk, "etc/kubernetes/api.crt"), filepath.Join(c.disk, "etc/kubernetes/api.key"))
	must(c.t, err)
	f.Server = &httptest.Server{
		Listener: l, EnableHTTP2: true, TLS: &tls.Config{Certificates: []tls.Certificate{cert}}, Config: &http.Server{Handler: f},
	}
	f.StartTLS()
	c.t.Cleanup(func() { f.become(nil); f.CloseClientConnections(); f.Close() })
	c.agents = l.Addr().String()
	return f
}

func (f *front) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	f.asked[kind(r)]++
	bad, over := f.bad, f.over
	f.mu.Unlock()
	if bad == nil || !bad(w, r, over) {
		f.proxy.ServeHTTP(w, r)
	}
}

// become has the front be bad from now on, nil: good. All connections are cut.
func (f *front) become(bad badness) {
	f.mu.Lock()
	f.bad = bad
	close(f.over)
	f.over = make(chan struct{})
	clear(f.asked)
	f.mu.Unlock()
	f.CloseClientConnections()
}

// requests returns how many lists and watches the agents have asked for since the front became what it is.
func (f *front) requests() (lists, watches int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.asked["list"], f.asked["watch"]
}

// waitAsked waits until the agents have asked so many times since the front became what it is.
func (f *front) waitAsked(what string, times int) {
	f.t.Helper()
	nettest.Eventually(f.t, fmt.Sprintf("the agents to ask for %d %s", times, what), func() bool {
		lists, watches := f.requests()
		return lists >= times || what != "lists" && lists+watches >= times
	})
}

// renew starts the agents anew, and returns when they have asked for lists: a new agent does not wait as long between its tries as
// one that has failed for long.
func (f *front) renew(c *cluster) {
	f.t.Helper()
	f.mu.Lock()
	clear(f.asked)
	f.mu.Unlock()
	for _, n := range c.nodes {
		n.berthd.kill()
		n.berthd.start()
		nettest.Eventually(f.t, "the agent to serve", n.serves)
	}
	f.waitAsked("lists", len(c.nodes))
}

// failing answers with a status.
func failing(status int) badness {
	return func(w http.ResponseWriter, _ *http.Request, _ <-chan struct{}) bool {
		w.Header().Set("Retry-After", "1")
		w.WriteHeader(status)
		return true
	}
}

// hanging never answers.
func hanging(_ http.ResponseWriter, r *http.Request, over <-chan struct{}) bool {
	select {
	case <-over:
	case <-r.Context().Done():
	}
	return true
}

// slow answers after 3 s.
func slow(_ http.ResponseWriter, r *http.Request, over <-chan struct{}) bool {
	select {
	case <-time.After(3 * time.Second):
	case <-over:
	case <-r.Context().Done():
	}
	return false
}

// cutting lets each watch live for half a second, also one that begins with all that there is.
func (f *front) cutting(w http.ResponseWriter, r *http.Request, over <-chan struct{}) bool {
	if r.URL.Query().Get("watch") != "" {
		time.AfterFunc(500*time.Millisecond, func() {
			select {
			case <-over:
			default:
				f.CloseClientConnections()
			}
		})
	}
	return false
}

// lagging answers each list with what the API server lists now, and no watch.
func (f *front) lagging() badness {
	var mu sync.Mutex
	var old *httptest.ResponseRecorder
	return func(w http.ResponseWriter, r *http.Request, _ <-chan struct{}) bool {
		if q := r.URL.Query(); q.Get("watch") != "" {
			w.WriteHeader(http.StatusUnprocessableEntity) // of lists, too: the client then asks for them as it did before Kubernetes 1.27
			return true
		}
		mu.Lock()
		defer mu.Unlock()
		if old == nil {
			old = httptest.NewRecorder()
			f.proxy.ServeHTTP(old, r)
		}
		for name, values := range old.Header() {
			w.Header()[name] = values
		}
		w.WriteHeader(old.Code)
		_, _ = io.Copy(w, bytes.NewReader(old.Body.Bytes()))
		return true
	}
}

// scale has a Deployment have so many pods, and returns when they are ready and all others are detached.
func (c *cluster) scale(app string, replicas int) (all []pod) {
	c.t.Helper()
	c.mustKubectl("scale", "deployment/"+app, fmt.Sprintf("--replicas=%d", replicas))
	nettest.Eventually(c.t, fmt.Sprintf("%d pods of %s to be ready, and no others to be attached", replicas, app), func() bool {
		all = c.pods(app)
		ready, attached := 0, 0
		for _, p := range all {
			if p.ready() {
				ready++
			}
		}
		for _, n := range c.nodes {
			attached += len(n.attachments())
		}
		return len(all) == replicas && ready == replicas && attached == replicas
	})
	return all
}

// The API server refuses agents, fails, hangs, is slow, cuts watches and tells what was long ago. Pods come and go all the same, also
// with an agent that starts meanwhile; the routes stay, and follow what has changed once the API server is well.
// While it is well, no pod that comes or goes has an agent ask it for anything.
func TestBadAPIServer(t *testing.T) {
	c := startBare(t, 2)
	f := c.startFront()
	for _, n := range c.nodes {
		n.startBerth(c.control)
	}
	c.waitWhole()
	empty := c.states()
	lead := func(when, cidr, to string) {
		t.Helper()
		for _, n := range c.nodes {
			nettest.Eventually(t, fmt.Sprintf("%s, %s to lead from %s to %q", when, cidr, n.name, to), func() bool { return n.leads(cidr, to) })
		}
	}
	lists, watches := f.requests()
	c.reach(c.deploy("web", 4, 0))
	c.scale("web", 0)
	if l, w := f.requests(); l != lists || w != watches {
		t.Errorf("the agents have asked the API server for %d lists and %d watches while pods came and went", l-lists, w-watches)
	}
	for i, bad := range []struct {
		name string
		badness
		times int  // how often agents are to ask meanwhile
		blind bool // agents hear nothing
	}{{"429", failing(429), 4, true}, {"500", failing(500), 4, true}, {"hanging", hanging, 2, true}, {"slow", slow, 2, false}, {"cutting watches", f.cutting, 3, false}} {
		began := time.Now()
		f.renew(c)
		f.become(bad.badness)
		f.waitAsked("lists or watches", bad.times)
		name, address, cidr := fmt.Sprintf("late%d", i), fmt.Sprintf("192.0.2.%d", 50+i), fmt.Sprintf("10.244.%d.0/24", 50+i)
		c.claim(name, address, []string{cidr})
		if bad.name == "500" {
			c.nodes[0].berthd.kill()
			c.nodes[0].berthd.start()
			nettest.Eventually(t, "the agent to serve", func() bool { _, err := c.nodes[0].run(c.nodes[0].bin+"/berth", "status"); return err == nil })
		}
		c.reach(c.scale("web", 4))
		c.scale("web", 0)
		if bad.blind {
			lead("when the API server answers "+bad.name, cidr, "")
		}
		f.become(nil)
		lead("after "+bad.name, cidr, address)
		t.Logf("%s: %s", bad.name, time.Since(began).Round(10*time.Millisecond))
	}
	stale(c, f)
	c.mustKubectl("delete", "node", "late0", "late1", "late2", "late3", "late4", "later")
	c.mustKubectl("delete", "deployment", "web", "--cascade=foreground", "--timeout=60s")
	c.nothingLeft(empty)
}

// stale: the API server lists what there was before a node came and another one went, as one that lags behind another one does.
func stale(c *cluster, f *front) {
	c.t.Helper()
	old := f.lagging()
	f.become(old)
	f.renew(c) // who is answered has the list as it is now
	f.become(nil)
	c.claim("later", "192.0.2.60", []string{"10.244.60.0/24"})
	for _, n := range c.nodes {
		nettest.Eventually(c.t, n.name+" to lead to a later node", func() bool { return n.leads("10.244.60.0/24", "192.0.2.60") })
	}
	f.become(old)
	f.waitAsked("lists", 4*len(c.nodes))
	c.reach(c.scale("web", 4))
	c.scale("web", 0)
	for _, n := range c.nodes {
		if !n.leads("10.244.60.0/24", "192.0.2.60") {
			c.t.Errorf("after an old list %s does not lead to a node that came later: %q", n.name, n.ways())
		}
	}
	f.become(nil)
}

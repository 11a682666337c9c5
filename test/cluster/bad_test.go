package cluster

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"path"
	"path/filepath"
	"slices"
	"strings"
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
	asked map[string]int // how many requests there were since then, by kind, such as "list nodes"
}

// badness answers a request, or reports that the API server has to. It may wait until over is closed.
type badness func(w http.ResponseWriter, r *http.Request, over <-chan struct{}) (answered bool)

// followed are the resources that an agent lists and watches.
func (a addressing) followed() []string {
	if a == ofNodes {
		return []string{"nodes"}
	}
	return []string{"nodes", "nodenetworks", "ippools", "pods", "namespaces"}
}

// kind says what a request is: "list" or "watch" and the resource, "read" of one object, or "write". A watch that begins with all
// that there is comes in a list's place.
func kind(r *http.Request) string {
	resource := path.Base(r.URL.Path)
	switch q := r.URL.Query(); {
	case r.Method != http.MethodGet:
		return "write"
	case !slices.Contains(ofPools.followed(), resource):
		return "read"
	case q.Get("watch") != "" && q.Get("sendInitialEvents") != "true":
		return "watch " + resource
	}
	return "list " + resource
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

// requests returns how many requests of each kind there were since the front became what it is.
func (f *front) requests() map[string]int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.asked)
}

// waitLists waits until the agents have asked so many times for a list of each of these resources since the front became what it is.
func (f *front) waitLists(times int, resources ...string) {
	f.t.Helper()
	nettest.Eventually(f.t, fmt.Sprintf("the agents to ask for %d lists of each of %q", times, resources), func() bool {
		asked := f.requests()
		return !slices.ContainsFunc(resources, func(r string) bool { return asked["list "+r] < times })
	})
}

// waitAsked waits until the agents have asked so many times for lists or watches of nodes since the front became what it is.
func (f *front) waitAsked(times int) {
	f.t.Helper()
	nettest.Eventually(f.t, fmt.Sprintf("the agents to ask for %d lists or watches of nodes", times), func() bool {
		asked := f.requests()
		return asked["list nodes"]+asked["watch nodes"] >= times
	})
}

// renew starts the agents anew, and returns when they have asked for all lists: a new agent does not wait as long between its tries
// as one that has failed for long.
func (f *front) renew(c *cluster, way addressing) {
	f.t.Helper()
	f.mu.Lock()
	clear(f.asked)
	f.mu.Unlock()
	c.each(func(n *node) {
		n.berthd.kill()
		n.berthd.start()
		n.berthd.until("the agent to serve", n.serves)
	})
	f.waitLists(len(c.nodes), way.followed()...)
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

// lagging answers each list with what the API server lists when it is first asked for that list, and no watch.
func (f *front) lagging() badness {
	var mu sync.Mutex
	lists := map[string]*httptest.ResponseRecorder{}
	return func(w http.ResponseWriter, r *http.Request, _ <-chan struct{}) bool {
		what, q := kind(r), r.URL.Query()
		if what == "read" || what == "write" {
			return false
		}
		if q.Get("watch") != "" {
			w.WriteHeader(http.StatusUnprocessableEntity) // of lists, too: the client then asks for them as it did before Kubernetes 1.27
			return true
		}
		mu.Lock()
		defer mu.Unlock()
		what += q.Get("fieldSelector") // pods of one node
		old := lists[what]
		if old == nil {
			old = httptest.NewRecorder()
			lists[what] = old
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

// join makes a Node that nobody runs, whose addresses end in host, and returns an IPv4 CIDR of its pods and its IPv4 address.
func (c *cluster) join(way addressing, name string, host int) (cidr, address string) {
	c.t.Helper()
	if way == ofNodes {
		cidr = fmt.Sprintf("10.244.%d.0/24", host)
		return cidr, c.claim(name, host, []string{cidr})
	}
	address = c.claim(name, host, nil)
	nettest.Eventually(c.t, "an operator to make "+name+"'s NodeNetwork", func() bool {
		_, err := c.kubectl("patch", "nodenetwork", name, "--subresource=status", "--type=merge", // as its agent would
			`--patch={"status": {"requests": [{"pool": "blue", "addresses": 1}]}}`)
		return err == nil
	})
	nettest.Eventually(c.t, "an operator to give "+name+" a block", func() bool {
		for _, b := range c.share(name).Spec.Blocks {
			if strings.Contains(b.CIDR, ".") {
				cidr = b.CIDR
			}
		}
		return cidr != ""
	})
	return cidr, address
}

// The API server refuses agents, fails, hangs, is slow, cuts watches and tells what was long ago. Pods come and go all the same, also
// with an agent that starts meanwhile; the routes stay, and follow what has changed once the API server is well.
func TestBadAPIServer(t *testing.T) {
	c := startBare(t, 2)
	f := c.startFront()
	c.shortRests()
	c.startBerth()
	for way := range c.ways() {
		empty := c.states()
		c.asksForNoPod(f, way)
		for i, bad := range []struct {
			name string
			badness
			times int  // how often agents are to ask meanwhile
			blind bool // agents hear nothing
		}{{"429", failing(429), 4, true}, {"500", failing(500), 4, true}, {"hanging", hanging, 2, true}, {"slow", slow, 2, false}, {"cutting watches", f.cutting, 3, false}} {
			began := time.Now()
			f.renew(c, way)
			f.become(bad.badness)
			f.waitAsked(bad.times)
			name := fmt.Sprintf("late%d", i)
			cidr, address := c.join(way, name, 50+i)
			if bad.name == "500" {
				c.nodes[0].berthd.kill()
				c.nodes[0].berthd.start()
				c.nodes[0].berthd.until("the agent to serve", c.nodes[0].serves)
			}
			c.reach(c.scale("web", 4))
			c.scale("web", 0)
			for _, n := range c.nodes { // a block may be one that another node gave back a moment before, to which the ways still lead
				if bad.blind && (n.leads(cidr, address) || way == ofNodes && !n.leads(cidr, "")) {
					t.Errorf("when the API server answers %s, %s leads to a node that came meanwhile: %q", bad.name, n.name, n.ways())
				}
			}
			f.become(nil)
			c.lead("after "+bad.name, cidr, address)
			t.Logf("%s: %s", bad.name, time.Since(began).Round(10*time.Millisecond))
		}
		stale(c, f, way)
		c.mustKubectl("delete", "node", "late0", "late1", "late2", "late3", "late4", "later")
		c.mustKubectl("delete", "deployment", "web", "--cascade=foreground", "--timeout=60s")
		c.nothingLeft(empty)
	}
}

// lead waits until all nodes' ways to a CIDR lead to an address.
func (c *cluster) lead(when, cidr, to string) {
	c.t.Helper()
	for _, n := range c.nodes {
		nettest.Eventually(c.t, fmt.Sprintf("%s, %s to lead from %s to %q", when, cidr, n.name, to), func() bool { return n.leads(cidr, to) })
	}
}

// asksForNoPod: while the API server is well, no pod that comes or goes has an agent ask it for anything. If addresses are of pools,
// an agent may read of which pool a pod is that comes, if it has not heard of the pod yet. It tells what the node has of the pools
// twice a minute at most, and not once a pod.
func (c *cluster) asksForNoPod(f *front, way addressing) {
	c.t.Helper()
	const pods = 4
	before := f.requests()
	c.reach(c.deploy("web", pods, 0))
	came := f.requests()
	c.scale("web", 0)
	went := f.requests()
	if came["read"] != went["read"] {
		c.t.Errorf("the agents have read %d objects while pods went", went["read"]-came["read"])
	}
	if way == ofPools {
		if writes := went["write"] - before["write"]; writes > 2*len(c.nodes) {
			c.t.Errorf("the agents have written %d times while %d pods came, and went", writes, pods)
		}
		delete(before, "write")
		delete(went, "write")
		delete(before, "read")
		delete(went, "read")
	}
	if !maps.Equal(before, went) {
		c.t.Errorf("the agents have asked the API server while pods came and went: %v, and before %v", went, before)
	}
}

// stale: the API server lists what there was before a node came and another one went, as one that lags behind another one does.
func stale(c *cluster, f *front, way addressing) {
	c.t.Helper()
	old := f.lagging()
	f.become(old)
	f.renew(c, way) // who is answered has the lists as they are now
	f.become(nil)
	cidr, address := c.join(way, "later", 60)
	c.lead("after it came", cidr, address)
	f.become(old)
	f.waitLists(4*len(c.nodes), "nodes")
	c.reach(c.scale("web", 4))
	c.scale("web", 0)
	for _, n := range c.nodes {
		if !n.leads(cidr, address) {
			c.t.Errorf("after an old list %s does not lead to a node that came later: %q", n.name, n.ways())
		}
	}
	f.become(nil)
}

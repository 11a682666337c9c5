// Package kubetest is a Kubernetes API server in memory, for tests and benchmarks: it serves what an agent and an operator read and
// write, and what clients have to expect of it. It fails, answers slowly, forgets old versions, and shows old ones.
package kubetest

import (
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Object is an object as JSON has it.
type Object = map[string]any

// kinds are the resources that the server has: the kind and API version of each.
var kinds = map[string]metav1.TypeMeta{
	"nodes":        {Kind: "Node", APIVersion: "v1"},
	"pods":         {Kind: "Pod", APIVersion: "v1"},
	"namespaces":   {Kind: "Namespace", APIVersion: "v1"},
	"ippools":      {Kind: "IPPool", APIVersion: "berth.dev/v1alpha1"},
	"nodenetworks": {Kind: "NodeNetwork", APIVersion: "berth.dev/v1alpha1"},
	"events":       {Kind: "Event", APIVersion: "events.k8s.io/v1"},

	"network-attachment-definitions": {Kind: "NetworkAttachmentDefinition", APIVersion: "k8s.cni.cncf.io/v1"},
}

// event is a change that the server has seen.
type event struct {
	version  int
	typ      string // ADDED, MODIFIED or DELETED
	resource string
	object   Object
}

// Server is an API server.
type Server struct {
	*httptest.Server // nil unless Serve has started it
	// Wrote is told of each status that a client has written; it may be nil. It runs without the server's lock.
	Wrote func(resource string, o Object)

	mu      sync.Mutex
	version int
	objects map[string]map[string]Object // by resource and key (namespace/name)
	events  []event
	fail    int           // the status of all answers; 0: it serves
	refuses int           // the status of the answers to patches; 0: it takes them
	tried   int           // how many patches it got
	lags    string        // the resource of which it lists what was there at old, and has no watches; empty: none
	old     Object        // what it lists
	lacks   string        // a resource that it does not know; empty: none
	lists   int           // how many lists it has answered
	news    chan struct{} // closed at the next change
	patches []string      // the bodies of all patches that were accepted
	asked   []string      // what was asked for: METHOD PATH
}

// New returns a server that serves nobody yet: it is an http.Handler.
func New() *Server {
	return &Server{objects: map[string]map[string]Object{}, news: make(chan struct{})}
}

// Serve starts a server, until the test ends.
func Serve(t testing.TB) *Server {
	s := New()
	s.Server = httptest.NewServer(s)
	t.Cleanup(s.Close)
	t.Cleanup(s.CloseClientConnections)
	return s
}

// Kubeconfig writes a file that says how the server is reached.
func (s *Server) Kubeconfig(t testing.TB) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Appendf(nil, `{"clusters":[{"name":"c","cluster":{"server":%q}}],"contexts":[{"name":"c","context":{"cluster":"c"}}],"current-context":"c"}`, s.URL)
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// Put adds an object, or changes it. o is anything that JSON can have; it gets the next version, and keeps its UID.
func (s *Server) Put(resource string, o any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.put(resource, asObject(o))
}

func (s *Server) put(resource string, o Object) {
	meta := metaOf(o)
	key := keyOf(meta)
	was, known := s.objects[resource][key]
	if s.objects[resource] == nil {
		s.objects[resource] = map[string]Object{}
	}
	typ := "ADDED"
	if known {
		typ = "MODIFIED"
		meta["uid"] = metaOf(was)["uid"]
	}
	s.version++
	if meta["uid"] == nil {
		meta["uid"] = fmt.Sprintf("uid-%d", s.version)
	}
	meta["resourceVersion"] = strconv.Itoa(s.version)
	o["kind"], o["apiVersion"] = kinds[resource].Kind, kinds[resource].APIVersion
	s.objects[resource][key] = o
	s.happens(event{s.version, typ, resource, o})
}

// Edit changes an object as edit does.
func (s *Server) Edit(resource, key string, edit func(Object)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := asObject(s.objects[resource][key])
	edit(o)
	s.put(resource, o)
}

// Get returns an object; nil: there is none.
func (s *Server) Get(resource, key string) Object {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o := s.objects[resource][key]; o != nil {
		return asObject(o)
	}
	return nil
}

// Delete deletes an object.
func (s *Server) Delete(resource, key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.remove(resource, key)
}

func (s *Server) remove(resource, key string) {
	o := asObject(s.objects[resource][key])
	delete(s.objects[resource], key)
	s.version++
	metaOf(o)["resourceVersion"] = strconv.Itoa(s.version)
	s.happens(event{s.version, "DELETED", resource, o})
}

// Show has watches show an object as it once was, as a server does whose cache lags behind. Nothing changes.
func (s *Server) Show(resource string, o Object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	s.happens(event{s.version, "MODIFIED", resource, o})
}

func (s *Server) happens(e event) {
	s.events = append(s.events, e)
	s.stir()
}

// Break has the server answer with a status, 0: as it should. Watches end.
func (s *Server) Break(status int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fail = status
	s.stir()
}

// Keep notes what there is of a resource now, for Lag.
func (s *Server) Keep(resource string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.old = s.all(resource, func(Object) bool { return true })
}

// Lag has the server list what Keep has noted of a resource, and refuse to watch it, as a server does that lags behind another
// one. Watches of it end. An empty resource: it serves as it should.
func (s *Server) Lag(resource string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lags = resource
	s.stir()
}

// Lack has the server not know a resource, as one without its CustomResourceDefinition. Watches of it end. An empty resource: it knows all.
func (s *Server) Lack(resource string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lacks = resource
	s.stir()
}

// Listed returns how many lists the server has answered.
func (s *Server) Listed() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lists
}

// Refuse has the server answer patches with a status, 0: as it should.
func (s *Server) Refuse(status int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refuses = status
}

// Tried returns how many patches the server got.
func (s *Server) Tried() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.tried
}

// Patches returns the patches that were accepted.
func (s *Server) Patches() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.patches)
}

// Asked returns what was asked for since the last call of Asked.
func (s *Server) Asked() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	asked := s.asked
	s.asked = nil
	return asked
}

func (s *Server) stir() {
	close(s.news)
	s.news = make(chan struct{})
}

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// nodesAPI is a simulated API server on the loopback that knows nodes, and nothing else.
type nodesAPI struct {
	server *http.Server
	url    string

	mu      sync.Mutex
	version int // of the last change
	nodes   map[string]corev1.Node
	events  []json.RawMessage // event i made version i+1
	news    chan struct{}     // closed at the next change
}

func serveNodes(nodes []corev1.Node) (*nodesAPI, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s := &nodesAPI{url: "http://" + l.Addr().String(), nodes: map[string]corev1.Node{}, news: make(chan struct{})}
	for _, n := range nodes {
		s.nodes[n.Name] = n
	}
	s.server = &http.Server{Handler: s}
	go func() { _ = s.server.Serve(l) }() // ends with close
	return s, nil
}

func (s *nodesAPI) close() { _ = s.server.Close() } // nothing is left to do about an error

func (s *nodesAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	w.Header().Set("Content-Type", "application/json")
	switch {
	case r.Method != http.MethodGet || r.URL.Path != "/api/v1/nodes":
		w.WriteHeader(http.StatusForbidden)
	case q.Get("sendInitialEvents") == "true":
		w.WriteHeader(http.StatusUnprocessableEntity) // as a server before Kubernetes 1.27: the client lists
	case q.Get("watch") != "":
		since, _ := strconv.Atoi(q.Get("resourceVersion"))
		s.watch(r.Context(), w, since)
	default:
		s.mu.Lock()
		defer s.mu.Unlock()
		list := corev1.NodeList{TypeMeta: metav1.TypeMeta{Kind: "NodeList", APIVersion: "v1"}}
		list.ResourceVersion = strconv.Itoa(s.version)
		for _, n := range s.nodes {
			list.Items = append(list.Items, n)
		}
		_ = json.NewEncoder(w).Encode(list) // a client that has left asks again
	}
}

// watch sends the events behind a version, until ctx ends.
func (s *nodesAPI) watch(ctx context.Context, w http.ResponseWriter, since int) {
	for {
		s.mu.Lock()
		later, news := s.events[min(since, len(s.events)):], s.news
		s.mu.Unlock()
		for _, e := range later {
			if _, err := w.Write(e); err != nil {
				return
			}
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

// change makes a change: typ is ADDED, MODIFIED or DELETED.
func (s *nodesAPI) change(typ string, n corev1.Node) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	n.ResourceVersion = strconv.Itoa(s.version)
	if s.nodes[n.Name] = n; typ == "DELETED" {
		delete(s.nodes, n.Name)
	}
	e := metav1.WatchEvent{Type: typ}
	var err error
	if e.Object.Raw, err = json.Marshal(n); err != nil {
		return err
	}
	text, err := json.Marshal(e)
	if err != nil {
		return err
	}
	s.events = append(s.events, text)
	close(s.news)
	s.news = make(chan struct{})
	return nil
}

// clusterNode returns node number i of a cluster: its address and its pods' CIDR follow from i.
func clusterNode(i int) corev1.Node {
	n := corev1.Node{TypeMeta: metav1.TypeMeta{Kind: "Node", APIVersion: "v1"}}
	n.Name = fmt.Sprintf("node-%d", i)
	n.Spec.PodCIDRs = []string{clusterCIDR(i)}
	n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: fmt.Sprintf("10.64.%d.%d", i>>8, i&255)}}
	return n
}

func clusterCIDR(i int) string { return fmt.Sprintf("10.%d.%d.0/24", 128+i>>8, i&255) }

package nodetest

import (
	"fmt"

	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/kinds/link"
)

// Pod is a network namespace. The pod's path may lead to another namespace by now.
type Pod struct {
	node  *Node
	boot  int // the boot in which it was made
	ref   ns.Ref
	ends  map[string]*Link // by the interface's name in the pod
	ended bool
}

// Pod makes a network namespace. From now on the path leads to it.
func (w *Node) Pod(path string) *Pod {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.pod(path)
	w.pods[path] = p
	return p
}

// pod makes a network namespace to which no path leads yet. The caller holds w.mu.
func (w *Node) pod(path string) *Pod {
	return &Pod{node: w, boot: w.boots, ref: w.identity(path), ends: map[string]*Link{}}
}

// identity returns the identity of a new namespace. The caller holds w.mu.
func (w *Node) identity(path string) ns.Ref {
	w.ids++
	ino := 4026531840 + w.ids
	if n := len(w.inodes); n > 0 {
		ino, w.inodes = w.inodes[n-1], w.inodes[:n-1]
	}
	return ns.Ref{Path: path, Dev: 4, Ino: ino, ID: w.ids}
}

// End ends a pod. Its interfaces go, and so do their other ends.
func (w *Node) End(p *Pod) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p.ended = true
	for _, l := range p.ends {
		w.unlink(l)
	}
	w.inodes = append(w.inodes, p.ref.Ino)
	if w.pods[p.ref.Path] == p {
		delete(w.pods, p.ref.Path)
	}
}

// Ref returns the pod's path, with the identity of its namespace.
func (p *Pod) Ref() ns.Ref { return p.ref }

// Ended reports whether the pod has ended, or the node has rebooted.
func (p *Pod) Ended() bool {
	p.node.mu.Lock()
	defer p.node.mu.Unlock()
	return p.isEnded()
}

// isEnded is Ended for a caller that holds the node's mu.
func (p *Pod) isEnded() bool { return p.ended || p.boot != p.node.boots }

// Ends returns the links into the pod, by the name of the interface there.
func (p *Pod) Ends() map[string]Link {
	p.node.mu.Lock()
	defer p.node.mu.Unlock()
	ends := map[string]Link{}
	for ifname, l := range p.ends {
		ends[ifname] = l.copied()
	}
	return ends
}

// netns is an open network namespace of a node.
type netns struct{ *Pod }

// open opens the namespace at a reference's path. It fails if another namespace is there now.
func (w *Node) open(ref ns.Ref) (ns.Handle, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p, err := w.find(ref)
	if err != nil {
		return nil, err
	}
	return netns{p}, nil
}

func (n netns) HasLink(name string) (bool, error) {
	n.node.mu.Lock()
	defer n.node.mu.Unlock()
	return n.ends[name] != nil, nil
}

func (n netns) Close() error { return nil }

// Identify returns the namespace at a reference's path. It fails if another namespace is there
// now.
func (w *Node) Identify(ref ns.Ref) (ns.Ref, error) {
	n, err := w.open(ref)
	if err != nil {
		return ns.Ref{}, err
	}
	return n.Ref(), nil
}

// find returns the namespace that a reference means. The caller holds w.mu.
func (w *Node) find(ref ns.Ref) (*Pod, error) {
	p := w.pods[ref.Path]
	if p == nil || !ref.Same(p.ref) {
		return nil, fmt.Errorf("opening %s: %w", ref.Path, ns.ErrGone)
	}
	return p, nil
}

// ends finds the pods' ends of links, as link.FindEnds does.
func (w *Node) ends(_ ns.Ref, wanted []link.WantedEnd) map[string]link.PodEnd {
	w.mu.Lock()
	defer w.mu.Unlock()
	ends := map[string]link.PodEnd{}
	for _, l := range wanted {
		if on := w.links[l.Name]; on != nil {
			ends[l.Name] = link.PodEnd{Netns: on.Pod.ref, MAC: on.End.MAC, Addresses: on.End.Addrs, Egress: on.End.Shape}
		}
	}
	return ends
}

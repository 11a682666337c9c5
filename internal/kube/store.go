package kube

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/berth-net/berth/internal/peers"
)

// nodeStore hands the nodes that the Reflector reads on, and keeps none. The Reflector alone calls it, from one goroutine.
type nodeStore struct {
	*Watcher
	newest string    // the newest resourceVersion that the API server has told
	since  time.Time // of the first of the lists that were too old; zero: the last one was not
}

// olderFor is for how long lists are refused that are older than what the API server has told before. An API server that lags
// behind another one catches up sooner. One whose store was restored from a backup never does.
const olderFor = 5 * time.Minute

// fresh returns an error if a list of this resourceVersion is older than what the API server has told before: as when another
// API server answers, which lags behind. By such a list, nodes would go that are there.
func (s *nodeStore) fresh(version string, now time.Time) error {
	order, err := resourceversion.CompareResourceVersion(version, s.newest)
	if err != nil || order >= 0 { // err: nothing to compare with
		s.since = time.Time{}
		return nil
	}
	if s.since.IsZero() {
		s.since = now
	}
	if now.Sub(s.since) >= olderFor {
		s.Log.Warn("the API server's list of nodes has been older than what it told before for long: the agent takes it for right", "version", version, "before", s.newest)
		s.since = time.Time{}
		return nil
	}
	return fmt.Errorf("the API server's list of nodes, of version %s, is older than what it told before, of version %s", version, s.newest)
}

// note notes the resourceVersion of an event.
func (s *nodeStore) note(version string) {
	if order, err := resourceversion.CompareResourceVersion(version, s.newest); err != nil || order > 0 {
		s.newest = version
	}
}

func (s *nodeStore) Add(o any) error { return s.Update(o) }

func (s *nodeStore) Update(o any) error {
	n, ok := o.(*corev1.Node)
	if !ok {
		return nil
	}
	s.note(n.ResourceVersion)
	if n.Name == s.Node {
		s.self(n)
	} else if node, ok := s.other(n); ok {
		s.Others.Put(node)
	} else {
		s.Others.Drop(n.Name)
	}
	return nil
}

func (s *nodeStore) Delete(o any) error {
	n, ok := o.(*corev1.Node)
	if !ok {
		return nil
	}
	s.note(n.ResourceVersion)
	if n.Name != s.Node {
		s.Others.Drop(n.Name)
	}
	return nil
}

// Replace takes a list of all nodes. The Reflector asks for another list if it returns an error.
func (s *nodeStore) Replace(all []any, version string) error {
	if err := s.fresh(version, time.Now()); err != nil {
		return err
	}
	s.newest = version
	var others []peers.Node
	for _, o := range all {
		n, ok := o.(*corev1.Node)
		if !ok {
			continue
		}
		if n.Name == s.Node {
			s.self(n)
		} else if node, ok := s.other(n); ok {
			others = append(others, node)
		}
	}
	s.Others.All(others)
	return nil
}

func (*nodeStore) Resync() error { return nil }

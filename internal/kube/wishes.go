package kube

import (
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/lease"
	"github.com/berth-net/berth/internal/nad"
)

// wish is what a pod asks for by its annotations. Kubernetes lets all annotations of an object have 256 KiB.
type wish struct {
	pod     api.Pod   // as the runtime knows it
	object  types.UID // of the API server's object: for a static pod another one than the runtime's
	version string    // resourceVersion
	nets    string    // nad.KeyNetworks
	def     string    // nad.KeyDefault
}

// wishFrom returns what a pod's metadata asks for.
func wishFrom(o *metav1.ObjectMeta) wish {
	m := lease.MetaOf(o, nil)
	return wish{
		pod: api.Pod{Namespace: m.Namespace, Name: m.Name, UID: m.UID}, object: types.UID(strings.Clone(string(o.UID))), version: strings.Clone(o.ResourceVersion),
		nets: strings.Clone(o.Annotations[nad.KeyNetworks]), def: strings.Clone(o.Annotations[nad.KeyDefault]),
	}
}

// differs reports whether the same pod asked for something else before. The zero wish is of no pod.
func (w wish) differs(before wish) bool {
	return w.pod.UID == before.pod.UID && (w.nets != before.nets || w.def != before.def)
}

func keyOf(namespace, name string) string { return namespace + "/" + name }

// older reports whether a resourceVersion is older than another one. One that cannot be compared is not.
func older(version, than string) bool {
	order, err := resourceversion.CompareResourceVersion(version, than)
	return err == nil && order < 0
}

// wishes are those of this node's pods. Their methods may be called concurrently.
type wishes struct {
	mu    sync.Mutex
	guard // whose newest is what the reflector has told last
	all   map[string]wish
}

// of returns what is known of a pod.
func (s *wishes) of(pod *api.Pod) (wish, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	is, known := s.all[keyOf(pod.Namespace, pod.Name)]
	return is, known && (pod.UID == "" || pod.UID == is.pod.UID)
}

// learn notes what the API server has answered, if the reflector has not got that far: who asked goes by the answer, so what the
// reflector tells later has to be compared with it.
func (s *wishes) learn(is wish) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := keyOf(is.pod.Namespace, is.pod.Name)
	was, known := s.all[key]
	if s.newest != "" && !older(s.newest, is.version) || known && !older(was.version, is.version) {
		return // the reflector knows better: the pod may be gone
	}
	s.all[key] = is
}

// put notes what a watch has told, and reports whether the pod asked for something else before.
func (s *wishes) put(is wish) (changed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.note(is.version)
	key := keyOf(is.pod.Namespace, is.pod.Name)
	was := s.all[key]
	if older(is.version, was.version) {
		return false
	}
	s.all[key] = is
	return is.differs(was)
}

// drop notes that a pod is gone. A pod of its name that is there by now stays.
func (s *wishes) drop(is wish) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.note(is.version)
	if key := keyOf(is.pod.Namespace, is.pod.Name); s.all[key].pod.UID == is.pod.UID {
		delete(s.all, key)
	}
}

// replace notes a list of all pods, and returns those that asked for something else before. It refuses a list that is older than what
// the reflector has told. What learn has noted since the list stays. If the guard lets an older list pass, because the cluster's store
// was restored, the list alone counts.
func (s *wishes) replace(list []wish, version string) (changed []api.Pod, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.fresh(version, time.Now()); err != nil {
		return nil, err
	}
	restored := older(version, s.newest)
	all := make(map[string]wish, len(list))
	for _, is := range list {
		key := keyOf(is.pod.Namespace, is.pod.Name)
		was := s.all[key]
		switch {
		case !restored && older(is.version, was.version):
			is = was
		case is.differs(was):
			changed = append(changed, is.pod)
		}
		all[key] = is
	}
	for key, was := range s.all {
		if _, listed := all[key]; !listed && !restored && older(version, was.version) {
			all[key] = was
		}
	}
	s.all, s.newest = all, version
	return changed, nil
}

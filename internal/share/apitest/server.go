// Package apitest is an API server in memory, as far as sharing pools out needs one: resourceVersions and conflicts, UIDs,
// finalizers, a status apart from the spec, and a log of all versions, so that a Client's cache can be as old as the test likes.
package apitest

import (
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-net/berth/api/v1alpha1"
)

// Server has nodes, NodeNetworks and IPPools. What it returns is nobody's to change.
type Server struct {
	// Written is called after each write, if it is set.
	Written func()

	mu      sync.Mutex
	version uint64
	objects map[key]metav1.Object
	log     []event
	writes  int
}

type key struct{ kind, name string }

// event is a version of an object; nil: it is gone.
type event struct {
	key
	object metav1.Object
}

const (
	kindNode    = "nodes"
	kindNetwork = "nodenetworks"
	kindPool    = "ippools"
)

// New returns a Server that has nothing.
func New() *Server { return &Server{objects: map[key]metav1.Object{}} }

func clone(o metav1.Object) metav1.Object {
	switch o := o.(type) {
	case *corev1.Node:
		return o.DeepCopy()
	case *v1alpha1.NodeNetwork:
		return o.DeepCopy()
	case *v1alpha1.IPPool:
		return o.DeepCopy()
	}
	panic(fmt.Sprintf("%T", o))
}

func kindOf(o metav1.Object) string {
	switch o.(type) {
	case *corev1.Node:
		return kindNode
	case *v1alpha1.NodeNetwork:
		return kindNetwork
	}
	return kindPool
}

func conflict(k key) error {
	return apierrors.NewConflict(schema.GroupResource{Resource: k.kind}, k.name, fmt.Errorf("the object has been modified"))
}

func notFound(k key) error {
	return apierrors.NewNotFound(schema.GroupResource{Resource: k.kind}, k.name)
}

// put stores a version of an object. The caller holds mu.
func (s *Server) put(o metav1.Object) {
	k := key{kindOf(o), o.GetName()}
	s.version++
	s.writes++
	o.SetResourceVersion(strconv.FormatUint(s.version, 10))
	stored := clone(o)
	if o.GetDeletionTimestamp() != nil && len(o.GetFinalizers()) == 0 {
		delete(s.objects, k)
		stored = nil
	} else {
		s.objects[k] = stored
	}
	s.log = append(s.log, event{k, stored})
	if s.Written != nil {
		s.Written()
	}
}

// Create makes an object, which gets its UID.
func (s *Server) Create(o metav1.Object) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := key{kindOf(o), o.GetName()}
	if s.objects[k] != nil {
		return apierrors.NewAlreadyExists(schema.GroupResource{Resource: k.kind}, k.name)
	}
	o.SetUID(types.UID(fmt.Sprintf("%s-%d", k.name, s.version)))
	o.SetGeneration(1)
	o.SetCreationTimestamp(metav1.NewTime(time.Unix(int64(s.version), 0)))
	switch o := o.(type) {
	case *v1alpha1.NodeNetwork:
		o.Status = v1alpha1.NodeNetworkStatus{}
	case *v1alpha1.IPPool:
		o.Status = v1alpha1.IPPoolStatus{}
	}
	s.put(o)
	return nil
}

// Update writes an object's metadata and spec, or its status alone.
func (s *Server) Update(o metav1.Object, status bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := key{kindOf(o), o.GetName()}
	old := s.objects[k]
	switch {
	case old == nil || old.GetUID() != o.GetUID() && o.GetUID() != "":
		return notFound(k)
	case old.GetResourceVersion() != o.GetResourceVersion():
		return conflict(k)
	}
	o.SetDeletionTimestamp(old.GetDeletionTimestamp())
	switch o := o.(type) {
	case *v1alpha1.NodeNetwork:
		merge(&o.Spec, &o.Status, &o.ObjectMeta, old.(*v1alpha1.NodeNetwork).Spec, old.(*v1alpha1.NodeNetwork).Status,
			old.(*v1alpha1.NodeNetwork).ObjectMeta, status)
	case *v1alpha1.IPPool:
		merge(&o.Spec, &o.Status, &o.ObjectMeta, old.(*v1alpha1.IPPool).Spec, old.(*v1alpha1.IPPool).Status,
			old.(*v1alpha1.IPPool).ObjectMeta, status)
	}
	s.put(o)
	return nil
}

func merge[Spec, Status any](spec *Spec, st *Status, meta *metav1.ObjectMeta, oldSpec Spec, oldStatus Status, oldMeta metav1.ObjectMeta, status bool) {
	if status {
		*spec, *meta = oldSpec, *oldMeta.DeepCopy()
		return
	}
	*st = oldStatus
	if meta.Generation = oldMeta.Generation; !reflect.DeepEqual(*spec, oldSpec) {
		meta.Generation++
	}
}

// Delete deletes an object, as soon as it has no finalizers. uid may be "".
func (s *Server) Delete(kindOf metav1.Object, name string, uid types.UID) error {
	return s.remove(kindOf, name, uid, false)
}

// Force deletes an object whatever finalizers it has.
func (s *Server) Force(kindOf metav1.Object, name string) error {
	return s.remove(kindOf, name, "", true)
}

func (s *Server) remove(of metav1.Object, name string, uid types.UID, force bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := key{kindOf(of), name}
	old := s.objects[k]
	switch {
	case old == nil:
		return notFound(k)
	case uid != "" && uid != old.GetUID():
		return conflict(k)
	}
	o := clone(old)
	if force {
		o.SetFinalizers(nil)
	}
	if o.GetDeletionTimestamp() == nil {
		now := metav1.NewTime(time.Unix(int64(s.version), 0))
		o.SetDeletionTimestamp(&now)
		o.SetGeneration(old.GetGeneration() + 1)
	}
	s.put(o)
	return nil
}

// Get returns an object of the kind of T; nil if it is not there.
func Get[T metav1.Object](s *Server, name string) (none T) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o, ok := s.objects[key{kindOf(none), name}].(T); ok {
		return o
	}
	return none
}

// List returns all objects of the kind of T, by name.
func List[T metav1.Object](s *Server) []T {
	s.mu.Lock()
	defer s.mu.Unlock()
	return list[T](s.objects)
}

func list[T metav1.Object](objects map[key]metav1.Object) (all []T) {
	var none T
	for k, o := range objects {
		if k.kind == kindOf(none) {
			all = append(all, o.(T))
		}
	}
	slices.SortFunc(all, func(a, b T) int { return cmp.Compare(a.GetName(), b.GetName()) })
	return all
}

// Version returns how many versions of objects there were.
func (s *Server) Version() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.log)
}

// Writes returns how many writes there were.
func (s *Server) Writes() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.writes
}

// Cache follows a Server, and is as old as it is left.
type Cache struct {
	server  *Server
	seen    int
	objects map[key]metav1.Object
}

// Cache returns a cache that has seen the server's first versions.
func (s *Server) Cache(seen int) *Cache {
	c := &Cache{server: s, objects: map[key]metav1.Object{}}
	c.Advance(seen)
	return c
}

// Advance lets the cache see at most n more versions.
func (c *Cache) Advance(n int) {
	c.server.mu.Lock()
	defer c.server.mu.Unlock()
	for ; n > 0 && c.seen < len(c.server.log); n-- {
		e := c.server.log[c.seen]
		if c.seen++; e.object == nil {
			delete(c.objects, e.key)
		} else {
			c.objects[e.key] = e.object
		}
	}
}

// Behind returns how many versions the cache has not seen.
func (c *Cache) Behind() int { return c.server.Version() - c.seen }

// Cached returns what a cache has of an object.
func Cached[T metav1.Object](c *Cache, name string) (none T) {
	if o, ok := c.objects[key{kindOf(none), name}].(T); ok {
		return o
	}
	return none
}

// Names returns the names of a cache's nodes and NodeNetworks, and of its pools.
func (c *Cache) Names() (nodes, pools []string) {
	both := map[string]bool{}
	for k := range c.objects {
		if k.kind == kindPool {
			pools = append(pools, k.name)
		} else {
			both[k.name] = true
		}
	}
	slices.Sort(pools)
	return slices.Sorted(maps.Keys(both)), pools
}

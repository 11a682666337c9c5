package kube

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	nadv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-net/berth/internal/nad"
)

// ErrNoDefinition says that the API server has no such network attachment definition, or does not know such objects at all.
var ErrNoDefinition = errors.New("the cluster has no such network attachment definition")

// definitionResource is the resource's name at the API server.
const definitionResource = "network-attachment-definitions"

// longestKept is how many bytes a definition's configuration may have for the agent to keep the definition: anybody who may make
// definitions would fill the memory of all agents otherwise. The agent asks for a longer one each time.
const longestKept = 64 << 10

// definitions are the cluster's network attachment definitions, by keyOf. Nobody changes an object in there.
type definitions struct {
	mu  sync.Mutex
	all map[string]*nadv1.NetworkAttachmentDefinition
}

// Definition returns a network attachment definition: its namespace, name, resourceVersion, configuration and annotation
// nad.KeyResource. If the agent has not heard of it, it asks the API server. It is as new as what the agent has heard: a change may
// take a moment, or as long as the API server is away. Nobody may change the returned object. Errors: ErrNoDefinition, ErrAway, or a
// refusal by the API server.
func (w *Watcher) Definition(ctx context.Context, namespace, name string) (*nadv1.NetworkAttachmentDefinition, error) {
	if d := w.definitions.get(namespace, name); d != nil {
		return d, nil
	}
	ctx, cancel := context.WithTimeout(ctx, w.asking)
	defer cancel()
	var d nadv1.NetworkAttachmentDefinition
	err := w.nads.Get().Resource(definitionResource).Namespace(namespace).Name(name).Do(ctx).Into(&d)
	switch {
	case apierrors.IsNotFound(err):
		return nil, fmt.Errorf("reading network attachment definition %s/%s: %w: %w", namespace, name, ErrNoDefinition, err)
	case err != nil:
		return nil, fmt.Errorf("reading network attachment definition %s/%s: %w", namespace, name, away(err))
	}
	return lessOf(&d), nil
}

// lessOf returns what counts of a definition.
func lessOf(d *nadv1.NetworkAttachmentDefinition) *nadv1.NetworkAttachmentDefinition {
	less := &nadv1.NetworkAttachmentDefinition{Spec: d.Spec}
	less.Namespace, less.Name, less.ResourceVersion = d.Namespace, d.Name, d.ResourceVersion
	if resource, has := d.Annotations[nad.KeyResource]; has {
		less.Annotations = map[string]string{nad.KeyResource: resource}
	}
	return less
}

// get returns a definition; nil: it is not kept.
func (s *definitions) get(namespace, name string) *nadv1.NetworkAttachmentDefinition {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.all[keyOf(namespace, name)]
}

// put keeps a definition, unless it is too long.
func (s *definitions) put(d *nadv1.NetworkAttachmentDefinition) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if key := keyOf(d.Namespace, d.Name); len(d.Spec.Config) > longestKept {
		delete(s.all, key)
	} else {
		s.all[key] = lessOf(d)
	}
}

// drop forgets a definition.
func (s *definitions) drop(d *nadv1.NetworkAttachmentDefinition) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.all, keyOf(d.Namespace, d.Name))
}

// replace keeps these definitions alone.
func (s *definitions) replace(list []any) {
	next := definitions{all: make(map[string]*nadv1.NetworkAttachmentDefinition, len(list))}
	for _, o := range list {
		if d, ok := o.(*nadv1.NetworkAttachmentDefinition); ok {
			next.put(d)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = next.all
}

// definitionStore keeps the definitions that a reflector reads.
type definitionStore struct {
	*Watcher
	guard
}

func (s *definitionStore) Add(o any) error { return s.Update(o) }

func (s *definitionStore) Update(o any) error {
	if d, ok := o.(*nadv1.NetworkAttachmentDefinition); ok {
		s.note(d.ResourceVersion)
		s.definitions.put(d)
	}
	return nil
}

func (s *definitionStore) Delete(o any) error {
	if d, ok := o.(*nadv1.NetworkAttachmentDefinition); ok {
		s.note(d.ResourceVersion)
		s.definitions.drop(d)
	}
	return nil
}

// Replace takes a list of all definitions. The reflector asks for another list if it returns an error.
func (s *definitionStore) Replace(all []any, version string) error {
	err := s.fresh(version, time.Now())
	s.fails.noteOld(s.what, err)
	if err != nil {
		return err
	}
	s.newest = version
	s.definitions.replace(all)
	return nil
}

func (*definitionStore) Resync() error { return nil }

// Transformer keeps of a definition what counts, while a reflector collects all of them.
func (*definitionStore) Transformer() cache.TransformFunc {
	return func(o any) (any, error) {
		if d, ok := o.(*nadv1.NetworkAttachmentDefinition); ok {
			return lessOf(d), nil
		}
		return o, nil
	}
}

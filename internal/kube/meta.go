package kube

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/lease"
)

// accept is what asks an API server for metadata alone: of an object or of a watch's objects, or of a list.
func accept(kind string) string {
	return fmt.Sprintf("%[1]s;as=%[3]s;g=meta.k8s.io;v=v1,%[2]s;as=%[3]s;g=meta.k8s.io;v=v1,%[2]s", runtime.ContentTypeProtobuf, runtime.ContentTypeJSON, kind)
}

var acceptOne, acceptList = accept("PartialObjectMetadata"), accept("PartialObjectMetadataList")

// metadata lists and watches the metadata of the resources that a selector selects.
func (c *Client) metadata(resource string, of fields.Selector) *cache.ListWatch {
	ask := func(accept string, o metav1.ListOptions) *rest.Request {
		o.FieldSelector = of.String()
		return c.core.Get().Resource(resource).SetHeader("Accept", accept).VersionedParams(&o, metav1.ParameterCodec)
	}
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return ask(acceptList, o).Do(ctx).Get()
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.Watch = true
			return ask(acceptOne, o).Watch(ctx)
		},
	}
}

// meta asks for the metadata of one object.
func (c *Client) meta(ctx context.Context, r *rest.Request) (lease.Meta, error) {
	var o metav1.PartialObjectMetadata
	if err := r.SetHeader("Accept", acceptOne).Do(ctx).Into(&o); err != nil {
		return lease.Meta{}, err
	}
	var keys []string
	for k := range o.Labels {
		keys = append(keys, k)
	}
	return lease.MetaOf(&o.ObjectMeta, keys), nil
}

// bare keeps of an object's metadata what counts, while a reflector collects all objects.
func bare(keys []string) cache.TransformFunc {
	return func(o any) (any, error) {
		m, ok := o.(*metav1.PartialObjectMetadata)
		if !ok {
			return o, nil
		}
		less := &metav1.PartialObjectMetadata{}
		less.Namespace, less.Name, less.UID, less.ResourceVersion, less.Annotations = m.Namespace, m.Name, m.UID, m.ResourceVersion, m.Annotations
		for _, k := range keys {
			if v, has := m.Labels[k]; has {
				if less.Labels == nil {
					less.Labels = map[string]string{}
				}
				less.Labels[k] = v
			}
		}
		return less, nil
	}
}

func metasOf(all []any, keys []string) (metas []lease.Meta) {
	for _, o := range all {
		if m, ok := o.(*metav1.PartialObjectMetadata); ok {
			metas = append(metas, lease.MetaOf(&m.ObjectMeta, keys))
		}
	}
	return metas
}

// podStore hands on the pods of this node: to the view of what counts for pools, and to the wishes for networks.
type podStore struct{ *Watcher }

func (s podStore) Add(o any) error { return s.Update(o) }

func (s podStore) Update(o any) error {
	m, ok := o.(*metav1.PartialObjectMetadata)
	if !ok {
		return nil
	}
	s.pods.note(m.ResourceVersion)
	if s.Leases != nil {
		s.Leases.View().PutPod(lease.MetaOf(&m.ObjectMeta, nil))
	}
	if is := wishFrom(&m.ObjectMeta); s.Networks && s.wishes.put(is) {
		s.tellAsked([]api.Pod{is.pod})
	}
	return nil
}

func (s podStore) Delete(o any) error {
	m, ok := o.(*metav1.PartialObjectMetadata)
	if !ok {
		return nil
	}
	s.pods.note(m.ResourceVersion)
	if s.Leases != nil {
		s.Leases.View().DropPod(lease.MetaOf(&m.ObjectMeta, nil))
	}
	if s.Networks {
		s.wishes.drop(wishFrom(&m.ObjectMeta))
	}
	return nil
}

func (s podStore) Replace(all []any, version string) error {
	s.pods.note(version)
	if s.Leases != nil {
		s.Leases.View().Pods(metasOf(all, nil))
	}
	if !s.Networks {
		return nil
	}
	var list []wish
	for _, o := range all {
		if m, ok := o.(*metav1.PartialObjectMetadata); ok {
			list = append(list, wishFrom(&m.ObjectMeta))
		}
	}
	changed, err := s.wishes.replace(list, version)
	s.fails.noteOld(s.wishes.what, err)
	s.tellAsked(changed)
	return err
}

// tellAsked tells of pods that ask for other networks than before.
func (s podStore) tellAsked(pods []api.Pod) {
	for _, pod := range pods {
		if s.Asked != nil {
			s.Asked(pod)
		}
	}
}

func (podStore) Resync() error                    { return nil }
func (podStore) Transformer() cache.TransformFunc { return bare(nil) }

// keepNamespaces follows the namespaces until ctx ends, and anew when other labels of them count.
func (w *Watcher) keepNamespaces(ctx context.Context) {
	for ctx.Err() == nil {
		keys, changed := w.Leases.View().NamespaceLabels()
		following, cancel := context.WithCancel(ctx)
		stop := make(chan struct{})
		go func() {
			defer close(stop)
			select {
			case <-changed:
			case <-following.Done():
			}
			cancel()
		}()
		w.follow(following, "namespaces", w.metadata("namespaces", fields.Everything()), &metav1.PartialObjectMetadata{}, namespaceStore{w, keys})
		cancel()
		<-stop
	}
}

// namespaceStore hands on the namespaces, with the labels in keys.
type namespaceStore struct {
	*Watcher
	keys []string
}

func (s namespaceStore) Add(o any) error { return s.Update(o) }

func (s namespaceStore) Update(o any) error {
	for _, m := range metasOf([]any{o}, s.keys) {
		s.Leases.View().PutNamespace(m, s.keys)
	}
	return nil
}

func (s namespaceStore) Delete(o any) error {
	for _, m := range metasOf([]any{o}, nil) {
		s.Leases.View().DropNamespace(m.Name)
	}
	return nil
}

func (s namespaceStore) Replace(all []any, _ string) error {
	s.Leases.View().Namespaces(metasOf(all, s.keys), s.keys)
	return nil
}

func (namespaceStore) Resync() error                      { return nil }
func (s namespaceStore) Transformer() cache.TransformFunc { return bare(s.keys) }

package kube

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/lease"
)

// presentWithin is how long the API server may take to say which pods the node has.
const presentWithin = 5 * time.Second

// Pods asks the API server which pods this node has. An error: the API server does not say.
//
// A list without a resourceVersion is the API server's most recent state (a quorum read of etcd, or of a cache that has caught up
// with it): https://kubernetes.io/docs/reference/using-api/api-concepts/#semantics-for-get-and-list. A pod never changes its node.
// So a pod that was on this node before Pods was called, and that the list lacks, is gone for certain. An API server that breaks that
// promise, because it lags behind another one or its store was put back, shows by its list's version if it has told of a later one:
// Pods refuses such a list.
func (c *Client) Pods(ctx context.Context) (api.ClusterPods, error) {
	ctx, cancel := context.WithTimeout(ctx, presentWithin)
	defer cancel()
	before := c.pods.version()
	out := api.ClusterPods{Enabled: true, Node: c.node, Asked: time.Now(), Pods: []api.Pod{}}
	o := metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("spec.nodeName", c.node).String()}
	var list metav1.PartialObjectMetadataList
	err := c.audits.Get().Resource("pods").SetHeader("Accept", acceptList).VersionedParams(&o, metav1.ParameterCodec).Do(ctx).Into(&list)
	switch {
	case apierrors.IsForbidden(err):
		return out, fmt.Errorf("the agent may not list pods, a right that the chart's value clusterAudit gives: %w", err)
	case err != nil:
		return out, err
	case list.Continue != "":
		return out, errors.New("the API server's list is not complete")
	}
	if err := proves(list.ResourceVersion, before); err != nil {
		return out, err
	}
	c.pods.note(list.ResourceVersion)
	out.Version = list.ResourceVersion
	for i := range list.Items {
		m := lease.MetaOf(&list.Items[i].ObjectMeta, nil)
		out.Pods = append(out.Pods, api.Pod{Namespace: m.Namespace, Name: m.Name, UID: m.UID})
	}
	return out, nil
}

// seen is the newest resourceVersion of pods that the API server has told. Its methods may be called concurrently.
type seen struct {
	mu     sync.Mutex
	newest string
}

func (s *seen) version() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.newest
}

// note notes a resourceVersion. It leaves out what is none.
func (s *seen) note(version string) {
	if checkVersion(version) != nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	g := guard{newest: s.newest}
	g.note(version)
	s.newest = g.newest
}

func checkVersion(version string) error {
	_, err := resourceversion.CompareResourceVersion(version, version)
	return err
}

// proves returns an error for the resourceVersion of a list of pods that proves nothing, because the API server had told of a later
// version before it was asked. Unlike a guard, proves never gives in: who follows the API server has to go by what it says some
// time, and an audit need not.
func proves(version, before string) error {
	if err := checkVersion(version); err != nil {
		return fmt.Errorf("the API server's list of pods has the resourceVersion %q: %w", version, err)
	}
	if order, err := resourceversion.CompareResourceVersion(version, before); err == nil && order < 0 {
		return fmt.Errorf("the API server's list of pods, of version %s, is older than what it told before, of version %s (if its store was restored from a backup, restart the agent)", version, before)
	}
	return nil
}

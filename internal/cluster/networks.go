package cluster

import (
	"context"
	"errors"

	nadv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/kube"
)

// Definitions is what the API server says of pods' networks (networks.Cluster).
type Definitions struct{ *kube.Watcher }

// Definitions returns what the API server says of pods' networks; false if pods may not ask for networks, or the node belongs to no cluster.
func (c *Cluster) Definitions() (Definitions, bool) {
	return Definitions{c.kube}, c.kube != nil && c.kube.Networks
}

// Definition returns nil if there is no such definition.
func (d Definitions) Definition(ctx context.Context, namespace, name string) (*nadv1.NetworkAttachmentDefinition, error) {
	def, err := d.Watcher.Definition(ctx, namespace, name)
	if errors.Is(err, kube.ErrNoDefinition) {
		return nil, nil
	}
	return def, err
}

// WriteStatus succeeds if the pod is gone: there is nobody to tell.
func (d Definitions) WriteStatus(ctx context.Context, pod *api.Pod, text string) error {
	if err := d.Watcher.WriteStatus(ctx, pod, text); !errors.Is(err, kube.ErrPodGone) {
		return err
	}
	return nil
}

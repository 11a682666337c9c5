package networks

import (
	"context"

	"github.com/berth-net/berth/api"
)

// Tells reports whether a pod's status can be written.
func (n *Networks) Tells(pod *api.Pod) bool { return n.Cluster != nil && pod != nil && pod.Name != "" }

// Heard returns a channel that is closed once the cluster has said which pods the node has. Without a cluster it is nil.
func (n *Networks) Heard() <-chan struct{} {
	if n.Cluster == nil {
		return nil
	}
	return n.Cluster.Heard()
}

// WriteStatus writes what people are told of a pod's networks. Without a cluster nobody is told.
func (n *Networks) WriteStatus(ctx context.Context, pod *api.Pod, text string) error {
	if n.Cluster == nil {
		return nil
	}
	return n.Cluster.WriteStatus(ctx, pod, text)
}

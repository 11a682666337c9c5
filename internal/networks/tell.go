package networks

import (
	"context"

	"github.com/berth-net/berth/api"
)

// Tells reports whether a pod's status can be written.
func (n *Networks) Tells(pod *api.Pod) bool { return n.Cluster != nil && pod != nil && pod.Name != "" }

// WriteStatus writes what people are told of a pod's networks. Without a cluster nobody is told.
func (n *Networks) WriteStatus(ctx context.Context, pod *api.Pod, text string) error {
	if n.Cluster == nil {
		return nil
	}
	return n.Cluster.WriteStatus(ctx, pod, text)
}

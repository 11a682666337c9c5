package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-net/berth/internal/daemon"
	"github.com/berth-net/berth/internal/patience"
)

// Reason is the reason of the node's condition NetworkUnavailable when Berth has set it to False.
const Reason = "BerthIsUp"

const (
	// askFor is how long the API server has for one patch of the condition.
	askFor = 15 * time.Second
	// The wait after a patch of the condition, whether or not the API server took it: somebody else may set the condition again
	// and again. It begins anew when the condition was right for twice the longest wait.
	soonAgain, lateAgain = time.Second, time.Minute
)

// condition is what a Watcher knows of its node's condition NetworkUnavailable. Clouds let nodes start with True, and the cluster
// then keeps pods away by the taint node.kubernetes.io/network-unavailable. The agent sets the condition to False when it has
// taken the addresses that the cluster has given to the node, and again if somebody sets it to something else or the Node is made
// anew. It never sets True, not even when it ends: attached pods keep their network then, and whether new ones get one is told by
// the plugin's STATUS and the runtime (NetworkReady). True would keep pods away for a restart of the agent.
type condition struct {
	wake chan struct{} // has a token if the condition may be due

	mu    sync.Mutex
	given []netip.Prefix // of the Node, as the API server has it; nil: none yet
	taken []netip.Prefix // what the agent has taken
	ready bool           // the node has blocks of the cluster's pools, and all that their pods need; then given does not count
	wrong bool           // the Node does not say that its network is available
	times int            // how often the API server has said something of the Node
}

// saw notes what the API server has of this node.
func (c *condition) saw(n *corev1.Node, given []netip.Prefix) {
	wrong := !slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeNetworkUnavailable && c.Status == corev1.ConditionFalse
	})
	c.mu.Lock()
	c.given, c.wrong, c.times = given, wrong, c.times+1
	c.mu.Unlock()
	stir(c.wake)
}

// took notes that the agent has taken the CIDRs that the cluster has given to the node.
func (c *condition) took(given []netip.Prefix) {
	c.mu.Lock()
	c.taken = given
	c.mu.Unlock()
	stir(c.wake)
}

// Ready tells whether the node has blocks of the cluster's pools, and all that pods with addresses of these need.
func (w *Watcher) Ready(ready bool) {
	w.condition.mu.Lock()
	changed := w.condition.ready != ready
	w.condition.ready = ready
	w.condition.mu.Unlock()
	if changed {
		stir(w.condition.wake)
	}
}

// due reports whether the agent has to set the condition now. set goes with that.
func (c *condition) due() (due bool, set func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	times := c.times
	return c.wrong && (c.ready || len(c.given) > 0 && slices.Equal(c.given, c.taken)), func() { c.set(times) }
}

// set notes that the API server has taken the condition, unless it has said something of the Node since: that may be newer.
func (c *condition) set(times int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.times == times {
		c.wrong = false
	}
}

// keepCondition sets the node's condition whenever it is due, until ctx ends. Nobody waits for it.
func (w *Watcher) keepCondition(ctx context.Context) {
	said, tries, last := "", 0, time.Time{}
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.condition.wake:
		}
		due, set := w.condition.due()
		if !due {
			continue
		}
		if time.Since(last) > 2*lateAgain {
			tries = 0
		}
		err := w.patchCondition(ctx)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			if text := err.Error(); text != said {
				said = text
				w.Log.Warn("could not tell the cluster that this node has a network; the agent tries again, and pods do not wait for it",
					"node", w.Node, "err", err)
			}
		} else {
			set()
			said = ""
			w.Log.Info("told the cluster that this node has a network (NetworkUnavailable=False)", "node", w.Node)
		}
		tries, last = tries+1, time.Now()
		daemon.Sleep(ctx, patience.Backoff(w.soonAgain, lateAgain, tries), nil)
		stir(w.condition.wake)
	}
}

// patchCondition is `kubectl patch node NODE --subresource=status`. The API server merges conditions by their types.
func (w *Watcher) patchCondition(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, askFor)
	defer cancel()
	now := metav1.Now()
	raw, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": []corev1.NodeCondition{{
		Type: corev1.NodeNetworkUnavailable, Status: corev1.ConditionFalse, Reason: Reason,
		Message: "Berth's agent attaches pods on this node", LastHeartbeatTime: now, LastTransitionTime: now,
	}}}})
	if err != nil {
		return fmt.Errorf("encoding the node's condition: %w", err)
	}
	patch := w.core.Patch(types.StrategicMergePatchType).Resource("nodes").Name(w.Node).SubResource("status")
	if err := patch.Body(raw).MaxRetries(0).Do(ctx).Error(); err != nil {
		return fmt.Errorf("patching the status of node %s: %w", w.Node, err)
	}
	return nil
}

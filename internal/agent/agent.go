// Package agent puts the node agent together: it lists the agent's rooms (agent.go), opens
// them (start.go), lists what they do while the agent lives (run.go), and removes an agent
// from a node (remove.go). The rooms do the agent's work.
package agent

import (
	"context"
	"errors"

	"github.com/berth-net/berth/internal/attachment"
	"github.com/berth-net/berth/internal/attachment/adopt"
	"github.com/berth-net/berth/internal/attachment/plug"
	"github.com/berth-net/berth/internal/attachment/status"
	"github.com/berth-net/berth/internal/attachment/verbs"
	"github.com/berth-net/berth/internal/cluster"
	"github.com/berth-net/berth/internal/config"
	"github.com/berth-net/berth/internal/daemon"
	"github.com/berth-net/berth/internal/drain"
	"github.com/berth-net/berth/internal/ground"
	"github.com/berth-net/berth/internal/mend"
	"github.com/berth-net/berth/internal/networks"
	"github.com/berth-net/berth/internal/node"
	"github.com/berth-net/berth/internal/rebuild"
	"github.com/berth-net/berth/internal/routes"
	"github.com/berth-net/berth/internal/traffic"
	"github.com/berth-net/berth/internal/views"
)

// Options are the options of an agent.
type Options struct {
	daemon.Options
	Config  *config.Config
	Version string
}

// Agent attaches and detaches pods of one node. It implements routes.Verbs.
type Agent struct {
	*verbs.Verbs   // answers a runtime
	*views.Views   // answers people
	*adopt.Adopter // adopts what a former CNI has attached

	core     *daemon.Daemon // the agent's place and epoch, its ledger and its engine
	node     *node.Node
	index    *attachment.Index
	ground   *ground.Ground     // what the agent itself holds for all pods
	drain    *drain.Drain       // deletions that no agent heard of
	mend     *mend.Mend         // mends what others change
	cluster  *cluster.Cluster   // the cluster that the node belongs to, and the ways to its other nodes
	traffic  *traffic.Traffic   // what pods' traffic leaves in connection tracking
	networks *networks.Networks // which networks pods get
	status   *status.Status     // tells people of these
	plugger  *plug.Plugger      // gives them to pods that run
	rebuild  *rebuild.Rebuild   // refuses a ledger that lacks pods, or makes one anew
}

var _ routes.Verbs = (*Agent)(nil)

// Sweep mends what has drifted, and removes what has no owner, once.
func (a *Agent) Sweep(ctx context.Context) {
	a.core.Sweep(ctx, daemon.Round{
		Before: func(ctx context.Context) { // first, so that the sweep does not take what a plugin has cut off for drift
			if err := a.drain.All(ctx); err != nil {
				a.core.Log.Error("could not carry out all queued deletions", "err", err)
			}
		},
		After: func(ctx context.Context) {
			a.clearLeft()
			a.ground.Keep(ctx)
			a.drain.KeepSpares()
		},
	})
}

// Close stops the agent's own work and closes the ledger. Pods stay as they are.
func (a *Agent) Close() error {
	err := a.core.Close()
	a.CloseHistory() // behind the last release
	return errors.Join(err, a.closeNode(), a.core.Unlock())
}

func (a *Agent) closeNode() error {
	a.mend.Close()
	return errors.Join(a.drain.Close(), a.node.Close())
}

package agent

import (
	"context"
	"errors"
	"fmt"

	"github.com/berth-net/berth/internal/daemon"
)

// Remove gives back what an agent that is not running holds itself, and removes the agent's history and the node's private key,
// so that only Berth's other files are left on the node. Remove refuses to do so while a pod is attached.
func Remove(ctx context.Context, o Options) error {
	a, err := Open(o)
	if daemon.Runs(err) {
		return fmt.Errorf("stop the agent first (systemctl stop berthd): %w", err)
	}
	if err != nil {
		return err
	}
	if err := errors.Join(a.remove(ctx), a.Close()); err != nil {
		return err
	}
	return a.RemoveHistory()
}

func (a *Agent) remove(ctx context.Context) error {
	if err := a.drain.Now(ctx); err != nil {
		return err
	}
	if err := a.core.Engine.Restore(ctx); err != nil {
		a.core.Log.Warn("could not restore everything", "err", err)
	}
	attached := 0
	for _, e := range a.index.All() {
		if e.Owner.Wanted() {
			attached++
		}
	}
	if attached > 0 {
		return fmt.Errorf("pods are attached (%d): detach them first (`berth attachments` lists them)", attached)
	}
	if err := a.core.ReleaseAll(ctx); err != nil {
		return err
	}
	return a.cluster.Peers.RemoveSecret()
}

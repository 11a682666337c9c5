package agent

import (
	"context"
	"errors"
	"fmt"

	"github.com/berth-net/berth/internal/hold"
)

// Remove gives back what an agent that is not running holds itself, so that
// nothing of Berth is left on the node but its files. It refuses while a pod is
// attached.
func Remove(ctx context.Context, o Options) error {
	a, err := Open(o)
	if err != nil {
		return err
	}
	return errors.Join(a.remove(ctx), a.Close())
}

func (a *Agent) remove(ctx context.Context) error {
	if err := a.engine.Restore(ctx); err != nil {
		a.Log.Warn("restoring", "err", err)
	}
	attached := 0
	var ids []hold.ID
	for _, o := range a.ledger.Owners() {
		ids = append(ids, o.ID)
		if o.Wanted() && a.index.get(o.ID) != nil {
			attached++
		}
	}
	if attached > 0 {
		return fmt.Errorf("%d pods are attached: detach them first (berth attachments)", attached)
	}
	if err := a.engine.Release(ctx, ids); err != nil {
		return err
	}
	return a.engine.Wait(ctx, ids...)
}

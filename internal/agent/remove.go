package agent

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

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
	if err := a.drain(ctx); err != nil {
		return err
	}
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
	return a.waitFor(ctx, ids)
}

const (
	removing = 30 * time.Second // how long all of it may take
	waitWord = 3 * time.Second  // how long it is waited without a word
)

// waitFor waits until owners are gone, and says what it waits for.
func (a *Agent) waitFor(ctx context.Context, ids []hold.ID) error {
	ctx, cancel := context.WithTimeout(ctx, removing)
	defer cancel()
	word := time.AfterFunc(waitWord, func() { a.Log.Info("waiting until it is gone", "what", a.leftOf(ids)) })
	defer word.Stop()
	if err := a.engine.Wait(ctx, ids...); err != nil {
		return fmt.Errorf("still there: %s: %w", a.leftOf(ids), err)
	}
	return nil
}

// leftOf says what owners still hold, and why.
func (a *Agent) leftOf(ids []hold.ID) string {
	var left []string
	for _, id := range ids {
		owed := a.engine.Owed(id)
		for _, o := range owed {
			left = append(left, fmt.Sprintf("%s (%v)", owedView(o).What, o.Err))
		}
		if o, ok := a.ledger.Owner(id); ok && len(owed) == 0 {
			left = append(left, o.String())
		}
	}
	return strings.Join(left, "; ")
}

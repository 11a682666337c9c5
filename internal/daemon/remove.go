package daemon

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/berth-net/berth/internal/hold"
)

// ReleaseAll releases every owner of the ledger, and waits until all are gone.
func (d *Daemon) ReleaseAll(ctx context.Context) error {
	var ids []hold.ID
	for _, o := range d.Ledger.Owners() {
		ids = append(ids, o.ID)
	}
	if err := d.Engine.Release(ctx, ids); err != nil {
		return err
	}
	return d.waitFor(ctx, ids)
}

const (
	removing = 30 * time.Second // how long waitFor waits
	waitWord = 3 * time.Second  // how long waitFor waits before the log says what is still there
)

// waitFor waits until owners are gone. If that takes longer than waitWord, the log says
// what it waits for.
func (d *Daemon) waitFor(ctx context.Context, ids []hold.ID) error {
	ctx, cancel := context.WithTimeout(ctx, removing)
	defer cancel()
	word := time.AfterFunc(waitWord, func() {
		d.Log.Info("waiting until all that the agent itself holds is given back", "what", d.leftOf(ids))
	})
	defer word.Stop()
	if err := d.Engine.Wait(ctx, ids...); err != nil {
		return fmt.Errorf("the agent still holds %s: %w", d.leftOf(ids), err)
	}
	return nil
}

// leftOf lists what owners still hold or owe, and why.
func (d *Daemon) leftOf(ids []hold.ID) string {
	var left []string
	for _, id := range ids {
		owed := d.Engine.Owed(id)
		for _, o := range owed {
			what := "record " + string(id)
			if o.Hold.Spec != nil {
				what = o.Hold.Spec.String()
			}
			left = append(left, fmt.Sprintf("%s (%v)", what, o.Err))
		}
		if o, ok := d.Ledger.Owner(id); ok && len(owed) == 0 {
			left = append(left, o.String())
		}
	}
	return strings.Join(left, "; ")
}

package verbs

import (
	"context"
	"errors"
	"fmt"

	"github.com/berth-net/berth/internal/attachment"
	"github.com/berth-net/berth/internal/engine"
	"github.com/berth-net/berth/internal/mode"
)

// incomplete returns the mode that completes an attachment; nil: the attachment lacks nothing.
func (v *Verbs) incomplete(e *attachment.Entry) mode.Completer {
	m, err := v.modes.Of(e.Record.Mode)
	if err != nil {
		return nil
	}
	if c, can := m.(mode.Completer); can && c.Incomplete(e.Owner) {
		return c
	}
	return nil
}

// returned waits until former attachments of an ADD's key have given back what somebody has lent to them, if the ADD gets something from the same
// lender: a plugin would take what the new attachment has for what the former one gives back.
func (v *Verbs) returned(ctx context.Context, add *addition) error {
	c, can := add.mode.(mode.Completer)
	if !can || add.make.IPAM == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, FormerPlace)
	defer cancel()
	for _, e := range v.index.Container(add.record.ContainerID) {
		if e.Record.Key != add.record.Key || e.Owner.Wanted() {
			continue
		}
		for _, kind := range c.Lenders() {
			if err := v.Engine.WaitKind(ctx, kind, e.Owner.ID); err != nil {
				return fmt.Errorf("waiting until IPAM plugin %s has the former addresses of %s back: %w", add.make.IPAM.Type, e.Record.Key, err)
			}
		}
	}
	return nil
}

// complete gives an attachment what its plan lacked, and returns it as it is then. After an error it returns the attachment as it was: a change
// that has begun is taken back. The caller has the turn of the attachment's key, or has taken the attachment itself.
func (v *Verbs) complete(ctx context.Context, e *attachment.Entry) (*attachment.Entry, error) {
	c := v.incomplete(e)
	if c == nil {
		return e, nil
	}
	change, undo, err := c.Complete(ctx, e.Owner, e.Record)
	if err != nil {
		return e, err
	}
	_, err = v.Engine.Change(ctx, e.Owner.ID, change)
	var refused *engine.RefusedError
	if errors.As(err, &refused) {
		undo()
	}
	if err != nil {
		return e, err
	}
	now := v.index.Get(e.Owner.ID)
	if now == nil || !now.Owner.Wanted() {
		return e, engine.ErrOvertaken
	}
	c.Taken(now.Owner)
	return now, nil
}

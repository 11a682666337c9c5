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

// executed is the spec of a hold for which other plugins are executed (delegate.Spec): under a network's name, which several definitions may
// give, and an interface's.
type executed interface {
	Executed() (network, ifname string)
}

// returned waits until former attachments of an ADD's container have given back what other plugins have made for them, or lent to them, under the
// ADD's network and interface, if other plugins get the ADD. They know an attachment by these alone: they would take what the new
// attachment has for what the former one gives back, also if the two are in different network namespaces.
func (v *Verbs) returned(ctx context.Context, add *addition) error {
	if add.make.IPAM == nil && add.make.List == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, FormerPlace)
	defer cancel()
	for _, e := range v.index.Container(add.record.ContainerID) {
		if e.Owner.Wanted() {
			continue
		}
		for _, h := range e.Owner.Holds {
			s, is := h.Spec.(executed)
			if !is {
				continue
			}
			if network, ifname := s.Executed(); network != add.make.Name || ifname != add.record.Ifname {
				continue
			}
			if err := v.Engine.WaitKind(ctx, h.Spec.Kind(), e.Owner.ID); err != nil {
				return fmt.Errorf("waiting until the plugins of network %s have back what the former %s in %s had: %w", add.make.Name, add.record.Ifname, e.Record.Netns.Path, err)
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

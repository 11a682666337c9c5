package verbs

import (
	"context"
	"errors"
	"sync"

	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/networks"
)

// besides are further networks of a pod that are planned, and are made beside each other.
type besides []besideOthers

// besideOthers is one of them.
type besideOthers struct {
	planned
	network networks.Network
}

// undo gives back the names of all that is planned.
func (b *besides) undo() {
	for _, p := range *b {
		p.planned.undo()
	}
	*b = nil
}

// prepare plans a further network whose place in the pod is free.
func (v *Verbs) prepare(ctx context.Context, add *addition, n networks.Network, pod ns.Handle, own *besides) error {
	if err := v.vacant(ctx, add, pod); err != nil {
		return err
	}
	p, err := v.planned(ctx, add)
	if err != nil {
		return err
	}
	*own = append(*own, besideOthers{p, n})
	if !add.hasOthersBeside() {
		return v.takeBeside(ctx, own)
	}
	return nil
}

// hasOthersBeside reports whether other networks of the pod may be made while this one is.
func (a *addition) hasOthersBeside() bool {
	return a.mode.Pooled() && a.make.IPAM == nil && len(a.make.Gateways) == 0
}

// takeBeside makes what is planned, beside each other, and answers when all is made or has failed.
func (v *Verbs) takeBeside(ctx context.Context, own *besides) error {
	errs := make([]error, len(*own))
	var all sync.WaitGroup
	for i, p := range *own {
		all.Go(func() {
			if _, err := v.take(ctx, p.planned); err != nil {
				errs[i] = inNetwork(p.network, err)
			}
		})
	}
	all.Wait()
	*own = nil
	return errors.Join(errs...)
}

package verbs

import (
	"cmp"
	"context"
	"errors"
	"sync"

	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/networks"
	"github.com/berth-net/berth/internal/turn"
)

// manner says how a network of a pod is made together with the pod's networks that come right before and behind it.
type manner int

const (
	alone  manner = iota
	beside        // all are made at once
	inLine        // one after the other; the ledger has those behind before their turn comes
)

// manner returns how a network is made.
func (a *addition) manner() manner {
	switch {
	case a.make.List != nil:
		return inLine
	case a.mode.Pooled() && a.make.IPAM == nil && len(a.make.Gateways) == 0:
		return beside
	}
	return alone
}

// besides are networks of a pod that are planned, and are made in one manner.
type besides []besideOthers

// besideOthers is one of them.
type besideOthers struct {
	planned
	network networks.Network // the zero Network: it is the pod's first one
}

// manner returns how the networks are made; alone: there are none.
func (b besides) manner() manner {
	if len(b) == 0 {
		return alone
	}
	return b[0].addition.manner()
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
	if add.manner() == alone {
		return v.takeAll(ctx, own)
	}
	return nil
}

// takeAll makes what is planned, and answers when all is made or has failed.
func (v *Verbs) takeAll(ctx context.Context, own *besides) error {
	all := *own
	*own = nil
	if all.manner() == inLine {
		return v.takeInLine(ctx, all, func() {})
	}
	return v.takeBeside(ctx, all)
}

// takeBeside makes networks beside each other.
func (v *Verbs) takeBeside(ctx context.Context, own besides) error {
	errs := make([]error, len(own))
	var all sync.WaitGroup
	for i, p := range own {
		all.Go(func() { errs[i] = v.takeOne(ctx, p) })
	}
	all.Wait()
	return errors.Join(errs...)
}

// takeInLine makes networks one after the other. While one is made, the ledger writes down those behind it; and what the plugins of one have
// answered it writes down while the next ones run. The answer is the first error: those behind a network that fails fail as well. takeInLine
// calls begun once the ledger has the pod's first network, if that is among them, or the first network has failed.
func (v *Verbs) takeInLine(ctx context.Context, own besides, begun func()) error {
	errs := make([]error, len(own))
	var line turn.Line
	var all sync.WaitGroup
	for i, p := range own {
		spot := line.Join()
		all.Go(func() {
			defer spot.Leave()
			if errs[i] = v.takeOne(turn.InLine(ctx, spot), p); errs[i] == nil {
				spot.Done()
			}
		})
		if !p.record.Further() {
			<-spot.Arrived() // the further ones need the first one in the ledger
			begun()
		}
	}
	all.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// takeAndSay makes all networks of a pod in line, and tells people of them. The ledger has the word before the networks are there, and the
// word goes out once all are.
func (v *Verbs) takeAndSay(ctx context.Context, own besides) error {
	var end turn.Line
	made, word := end.Join(), end.Join()
	var unsaid error
	var saying sync.WaitGroup
	err := v.takeInLine(ctx, own, func() {
		saying.Go(func() { unsaid = v.SayNetworks(turn.InLine(ctx, word), own[0].owner.ID, len(own) > 1) })
	})
	if err == nil {
		made.Done()
	}
	made.Leave()
	saying.Wait()
	return cmp.Or(err, unsaid)
}

// takeOne makes one of a pod's networks.
func (v *Verbs) takeOne(ctx context.Context, p besideOthers) error {
	_, err := v.take(ctx, p.planned)
	if err != nil && p.record.Further() {
		return inNetwork(p.network, err)
	}
	return err
}

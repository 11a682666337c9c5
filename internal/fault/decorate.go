package fault

import (
	"context"
	"fmt"

	"github.com/berth-net/berth/internal/engine"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/ledger"
)

// Decorate returns the ledger and the kinds with the plan put between them and an engine.
func (p *Plan) Decorate(l engine.Ledger, ks hold.Kinds) (engine.Ledger, hold.Kinds) {
	out := make(hold.Kinds, len(ks))
	for i, k := range ks {
		out[i] = p.kind(k)
		if p.Looks {
			out[i] = p.looks(out[i])
		}
	}
	return &faultyLedger{l, p}, out
}

type faultyLedger struct {
	engine.Ledger
	plan *Plan
}

func (l *faultyLedger) Commit(ctx context.Context, ops ...ledger.Op) error {
	return l.plan.Under(ctx, "commit", fmt.Sprintf("commit %T", ops[0]), nil, func() error { return l.Ledger.Commit(ctx, ops...) })
}

func (p *Plan) kind(k hold.Kind) hold.Kind {
	name := k.Name()
	acquire, release, cut := k.Acquire, k.Release, k.Cut
	one := func(op string, f func(context.Context, hold.Hold) error) func(context.Context, hold.Hold) error {
		return func(ctx context.Context, h hold.Hold) error {
			return p.Under(ctx, op+" "+name, op+" "+name, []hold.ID{h.Owner}, func() error { return f(ctx, h) })
		}
	}
	k.Acquire = one("acquire", acquire)
	k.Release = p.many("release "+name, release)
	if cut != nil {
		k.Cut = one("cut", cut)
	}
	return k
}

// looks puts the plan around a kind's looks.
func (p *Plan) looks(k hold.Kind) hold.Kind {
	verify, all := k.Verify, "verify "+k.Name()
	k.Verify = func(ctx context.Context, look *hold.Look, hs []hold.Hold) []error {
		return p.many(all, func(ctx context.Context, hs []hold.Hold) []error { return verify(ctx, look, hs) })(ctx, hs)
	}
	if find := k.Find; find != nil {
		what := "find " + k.Name()
		k.Find = func(ctx context.Context, look *hold.Look) (found []hold.Hold, err error) {
			err = p.Under(ctx, what, what, nil, func() (err error) { found, err = find(ctx, look); return err })
			return found, err
		}
	}
	return k
}

// many puts the plan around an operation on many holds: a fault hits all of them, or none.
func (p *Plan) many(what string, f func(context.Context, []hold.Hold) []error) func(context.Context, []hold.Hold) []error {
	return func(ctx context.Context, hs []hold.Hold) (errs []error) {
		owners := make([]hold.ID, len(hs))
		for i, h := range hs {
			owners[i] = h.Owner
		}
		err := p.Under(ctx, what, what, owners, func() error { errs = f(ctx, hs); return nil })
		if err != nil {
			errs = make([]error, len(hs))
			for i := range errs {
				errs[i] = err
			}
		}
		return errs
	}
}

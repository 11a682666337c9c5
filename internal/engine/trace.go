package engine

import (
	"context"
	"time"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/ledger"
)

// Tracer is told what the engine does for a caller. Its methods must not block.
type Tracer interface {
	// Acted is called after each operation on a hold: op is acquire, cut, sever or release. holds
	// is how many holds the operation had. For acquire, ctx is the caller's.
	Acted(ctx context.Context, op string, h hold.Hold, began time.Time, holds int, err error)
	// Committed is called after a commit that somebody waits for under ctx.
	Committed(ctx context.Context, began time.Time, err error)
	// Leaves says that the release of owners is promised to the caller of ctx, and Left that
	// nothing of an owner is left.
	Leaves(ctx context.Context, ids []hold.ID)
	Left(id hold.ID)
}

// commit commits ops that a caller waits for, and tells the tracer.
func (e *Engine) commit(ctx context.Context, ops ...ledger.Op) error {
	if e.Tracer == nil {
		return e.Ledger.Commit(ctx, ops...)
	}
	began := time.Now()
	err := e.Ledger.Commit(ctx, ops...)
	e.Tracer.Committed(ctx, began, err)
	return err
}

// act runs an operation on one hold.
func (e *Engine) act(ctx context.Context, k hold.Kind, op string, h hold.Hold, f func(context.Context, hold.Hold) error) error {
	once := func() error { return f(ctx, h) }
	if e.Tracer == nil {
		return e.observed(k.Name(), op, 1, once)
	}
	began := time.Now()
	err := e.observed(k.Name(), op, 1, once)
	e.Tracer.Acted(ctx, op, h, began, 1, err)
	return err
}

// released tells the tracer of the release of a batch, each hold with its error.
func (e *Engine) released(ctx context.Context, holds []hold.Hold, began time.Time, errs []error) {
	if e.Tracer == nil {
		return
	}
	for i, h := range holds {
		e.Tracer.Acted(ctx, "release", h, began, len(holds), errs[i])
	}
}

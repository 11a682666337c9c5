package engine

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/ledger"
)

// learn writes to the ledger what the first n holds of an owner have discovered, also in an
// Acquire that failed, and claims the names that these holds say. Until the ledger has what the
// holds discovered, the engine remembers it (remember), so that the owner's release knows of it. If
// one of the names belongs to another owner or rests, learn returns the *ledger.NameTakenError, and
// writes nothing down: if the program ended before the owner's release is promised, the next engine
// would otherwise find the hold as its record says, and take another's name for the owner's.
func (e *Engine) learn(ctx context.Context, o hold.Owner, n int) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undo)
	defer cancel()
	holds := o.Holds[:n]
	e.remember(o)
	err := e.noteDown(ctx, o.ID, holds, discovered(holds))
	if err == nil {
		e.written(o.ID)
	}
	return err
}

// remember keeps an owner with what its holds have discovered, until the ledger has that.
func (e *Engine) remember(o hold.Owner) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.unwritten[o.ID] = o.Clone()
}

// written drops what remember has kept of an owner: the ledger has it now.
func (e *Engine) written(id hold.ID) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.unwritten, id)
}

// noteDown writes holds over the first holds in an owner's record, and claims names for the
// owner.
func (e *Engine) noteDown(ctx context.Context, id hold.ID, holds []hold.Hold, names []hold.Name) error {
	err := e.Ledger.Commit(ctx, ledger.Update(id, func(rec *hold.Owner) error {
		copy(rec.Holds, holds)
		for _, name := range names {
			if !slices.Contains(rec.Names, name) {
				rec.Names = append(rec.Names, name)
			}
		}
		return nil
	}))
	if err != nil {
		return fmt.Errorf("writing down what was discovered of %s: %w", id, err)
	}
	return nil
}

// relearn writes down what the holds of an owner that stands have discovered when they were
// taken again. If the owner cannot have a name that a hold says, the hold is refused: a remnant
// (change.go) gives the hold back, the owner's record keeps what it said of the hold before, and
// the owner lacks the hold until the engine takes the hold again. If the record of the hold says
// that name already, the hold stays, and the name is not claimed. The caller has the owner's turn.
func (e *Engine) relearn(ctx context.Context, o hold.Owner) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undo)
	defer cancel()
	e.remember(o)
	var refused []hold.ID
	var errs []error
	var without []hold.Name
	for {
		names, _ := differ(without, discovered(o.Settled()))
		err := e.noteDown(ctx, o.ID, o.Holds, names)
		var taken *ledger.NameTakenError
		i := -1
		if errors.As(err, &taken) {
			i = slices.IndexFunc(o.Holds, func(h hold.Hold) bool { return slices.Contains(discovered([]hold.Hold{h}), taken.Name) })
		}
		if i < 0 {
			errs = append(errs, err)
			break
		}
		errs = append(errs, fmt.Errorf("taking %s again: %w", o.Holds[i].Spec, err))
		rec, _ := e.Ledger.Owner(o.ID)
		if slices.Contains(discovered(rec.Holds[i:i+1]), taken.Name) {
			without = append(without, taken.Name)
			continue
		}
		gone, ops := part(o, belongings{holds: o.Holds[i : i+1]}, e.now())
		if err := e.Ledger.Commit(ctx, ops...); err != nil {
			errs = append(errs, err)
			break
		}
		refused = append(refused, gone)
		o.Holds = slices.Clone(o.Holds)
		o.Holds[i] = rec.Holds[i]
		e.remember(o)
	}
	if errs[len(errs)-1] == nil {
		e.written(o.ID)
	}
	return errors.Join(append(errs, e.Depart(ctx, refused))...)
}

// relearnAll writes down what owners that stand have discovered and the ledger lacks.
func (e *Engine) relearnAll(ctx context.Context) error {
	e.mu.Lock()
	ids := slices.Collect(maps.Keys(e.unwritten))
	e.mu.Unlock()
	var errs []error
	for _, id := range ids {
		if !e.Taking(id) {
			errs = append(errs, e.settleUp(ctx, id, "writing down what was discovered", e.catchUp))
		}
	}
	return errors.Join(errs...)
}

// catchUp writes down what an owner has discovered and the ledger lacks, if the owner
// stands. The caller has the owner's turn.
func (e *Engine) catchUp(ctx context.Context, id hold.ID) error {
	o, ok := e.Ledger.Owner(id)
	if !ok || !e.stands(o) {
		return nil
	}
	if going, err := e.going(o); going || err != nil {
		return err
	}
	e.mu.Lock()
	_, lacks := e.unwritten[id]
	o.Holds = slices.Clone(e.learned(o).Holds)
	e.mu.Unlock()
	if !lacks {
		return nil
	}
	return e.relearn(ctx, o)
}

// discovered returns the names that holds say (hold.Namer).
func discovered(holds []hold.Hold) []hold.Name {
	var names []hold.Name
	for _, h := range holds {
		if n, ok := h.Spec.(hold.Namer); ok {
			names = append(names, n.Names()...)
		}
	}
	return names
}

// withLearned is learned for callers that do not hold Engine.mu. They may change the Holds of what it returns.
func (e *Engine) withLearned(o hold.Owner) hold.Owner {
	e.mu.Lock()
	defer e.mu.Unlock()
	o.Holds = slices.Clone(e.learned(o).Holds)
	return o
}

// learned returns an owner with all that its holds have discovered, also if the ledger
// lacks it. Engine.mu is held.
func (e *Engine) learned(o hold.Owner) hold.Owner {
	if u, ok := e.unwritten[o.ID]; ok {
		o.Holds = u.Holds
	}
	return o
}

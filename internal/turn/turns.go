// Package turn has locks for which callers wait under a context: one lock for each key (Turns), and
// a single one (One). The caller that has waited longest has the next turn. Aside gives back a
// request's place while the request waits for something else.
package turn

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
)

// ErrCrowded says that too many wait for the same turn already.
var ErrCrowded = errors.New("wait for the same turn already")

// Turns lets callers with the same key have their turns one after the other. The zero Turns is ready.
type Turns[K comparable] struct {
	// Most is how many may wait for a key's turn; 0: as many as come.
	Most int
	// Aside makes waiting callers give back the place in their context (Place), and enter anew once
	// they have their turn. So a turn that does not end keeps only its holder's place.
	Aside bool

	mu    sync.Mutex
	lines map[K][]chan struct{} // the waiting callers, by each key whose turn somebody has; a channel is closed when its turn comes
}

// Take waits for the key's turn until ctx ends. It fails with ErrCrowded if Most callers wait
// already, or if the caller should wait aside and cannot; with the cause of ctx if ctx ends;
// and with the error of entering anew. A caller who has given up takes no place in the line.
// done ends the turn; it must be called once.
func (t *Turns[K]) Take(ctx context.Context, key K) (done func(), err error) {
	t.mu.Lock()
	line, taken := t.lines[key]
	if !taken {
		if t.lines == nil {
			t.lines = map[K][]chan struct{}{}
		}
		t.lines[key] = nil
		t.mu.Unlock()
		return func() { t.next(key) }, nil
	}
	if t.Most > 0 && len(line) >= t.Most {
		t.mu.Unlock()
		return nil, fmt.Errorf("%d %w", len(line), ErrCrowded)
	}
	mine := make(chan struct{})
	t.lines[key] = append(line, mine)
	t.mu.Unlock()

	if err = t.await(ctx, mine); err == nil {
		return func() { t.next(key) }, nil
	}
	t.mu.Lock()
	at := slices.Index(t.lines[key], mine)
	if at >= 0 {
		t.lines[key] = slices.Delete(t.lines[key], at, at+1)
	}
	t.mu.Unlock()
	if at < 0 { // the turn has come, maybe at this very moment
		t.next(key)
	}
	return nil, err
}

// await waits for mine to be closed. The holder of the turn may be waiting for a place. A caller
// therefore gives its place back while it waits; otherwise the waiting callers could hold all
// places.
func (t *Turns[K]) await(ctx context.Context, mine <-chan struct{}) error {
	p, has := ctx.Value(placeKey{}).(Place)
	if !has || !t.Aside {
		select {
		case <-mine:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	done, left := p.Leave()
	defer done()
	if !left {
		return fmt.Errorf("others %w, and too many requests wait", ErrCrowded)
	}
	wait, over := p.wait(ctx)
	defer over()
	select {
	case <-mine:
		return p.Enter(ctx)
	case <-wait.Done():
		return context.Cause(wait)
	}
}

// next gives the turn to the caller that has waited longest.
func (t *Turns[K]) next(key K) {
	t.mu.Lock()
	defer t.mu.Unlock()
	line := t.lines[key]
	if len(line) == 0 {
		delete(t.lines, key)
		return
	}
	t.lines[key] = line[1:]
	close(line[0])
}

// One is a single turn, which all callers wait for. The zero One is ready.
type One struct{ turns Turns[struct{}] }

// OneAside returns a One for which callers wait aside (Turns.Aside).
func OneAside() One { return One{Turns[struct{}]{Aside: true}} }

// Take waits for the turn until ctx ends; it fails with the cause of ctx. done ends the
// turn; it must be called once.
func (o *One) Take(ctx context.Context) (done func(), err error) {
	return o.turns.Take(ctx, struct{}{})
}

// Taken reports whether somebody has the turn.
func (o *One) Taken() bool {
	o.turns.mu.Lock()
	defer o.turns.mu.Unlock()
	_, taken := o.turns.lines[struct{}{}]
	return taken
}

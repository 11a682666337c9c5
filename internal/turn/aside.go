package turn

import "context"

// Place is what somebody who works has, and others want: a request's place among those
// that execute at once.
type Place struct {
	// Leave gives it back. done is called when the wait is over, which does not take it
	// again: what comes then is short.
	Leave func() (done func())
	// Ended is closed when waits are to end, with Why.
	Ended <-chan struct{}
	Why   error
}

type placeKey struct{}

// WithPlace returns a context of work that has a place.
func WithPlace(ctx context.Context, p Place) context.Context {
	return context.WithValue(ctx, placeKey{}, p)
}

// Aside gives the place of ctx back, if it has one, before a wait that others decide on:
// whoever does not end it keeps nobody else. It returns the context of the wait, which
// ends when waits are to end, and what to call when it is over.
func Aside(ctx context.Context) (_ context.Context, over func()) {
	p, has := ctx.Value(placeKey{}).(Place)
	if !has {
		return ctx, func() {}
	}
	done := p.Leave()
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		select {
		case <-p.Ended:
			cancel(p.Why)
		case <-ctx.Done():
		}
	}()
	return ctx, func() { cancel(nil); done() }
}

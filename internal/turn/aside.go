package turn

import "context"

// Place is a request's place among those that execute at once. Others wait for it.
type Place struct {
	// Leave gives the place back before a wait. The caller calls done when the wait is over.
	// done does not take the place again, because the work that is left is short.
	Leave func() (done func())
	// Ended is closed when waits are to end. They end with Why.
	Ended <-chan struct{}
	Why   error
}

type placeKey struct{}

// WithPlace returns a context of work that has a place.
func WithPlace(ctx context.Context, p Place) context.Context {
	return context.WithValue(ctx, placeKey{}, p)
}

// Aside gives the place of ctx back, if ctx has one, before a wait that others end: if they
// never end it, the wait keeps no other request from executing. Aside returns the context of
// the wait, which also ends when waits are to end, and a function to call when the wait is over.
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

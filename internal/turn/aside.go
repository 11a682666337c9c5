package turn

import "context"

// Place is a request's place among the requests that execute at once. Other requests wait for a
// place.
type Place struct {
	// Leave gives the place back before a wait. The caller calls done when the wait is over.
	// left is false if too many requests wait so: then the request keeps its place.
	Leave func() (done func(), left bool)
	// Enter waits for a place again, for a request that goes on after its wait. A request that has
	// little work left goes on without a place.
	Enter func(context.Context) error
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
// keeps is true if too many requests wait so, and ctx keeps its place.
func Aside(ctx context.Context) (_ context.Context, over func(), keeps bool) {
	p, has := ctx.Value(placeKey{}).(Place)
	if !has {
		return ctx, func() {}, false
	}
	done, left := p.Leave()
	ctx, cancel := p.wait(ctx)
	return ctx, func() { cancel(); done() }, !left
}

// wait returns the context of a wait, which also ends when waits are to end.
func (p Place) wait(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		select {
		case <-p.Ended:
			cancel(p.Why)
		case <-ctx.Done():
		}
	}()
	return ctx, func() { cancel(nil) }
}

package server

import (
	"context"
	"fmt"
	"sync"
)

// place is a request's place among those that execute at once. The request may give it back
// while it waits for something else (turn.Place), and enter anew.
type place struct {
	server *Server
	route  *Route

	mu   sync.Mutex
	give func() // nil: the request has no place
}

// enter waits for a place.
func (p *place) enter(ctx context.Context) error {
	give, err := p.server.queue.enter(ctx, p.route.Lane)
	if err != nil {
		return numbered(fmt.Errorf("%s did not get its turn: %w", p.route.Verb, err))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.give = give
	return nil
}

// leave gives the place back, if the request has one.
func (p *place) leave() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.give != nil {
		p.give()
		p.give = nil
	}
}

// aside lets the request wait without its place, until done is called. If too many requests wait so
// already, aside leaves the request its place.
func (p *place) aside() (done func(), left bool) {
	select {
	case p.server.asides <- struct{}{}:
		p.leave()
		return func() { <-p.server.asides }, true
	default:
		return func() {}, false
	}
}

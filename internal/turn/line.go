package turn

import (
	"context"
	"errors"
	"sync"
)

// ErrAhead says that somebody ahead in a line has left it without being done.
var ErrAhead = errors.New("what comes before it has failed")

// Line has its members do one part of their work one after the other, in the order in which they have joined, and all else beside each
// other. The zero Line is ready. One goroutine has to call Join.
type Line struct{ last *Spot }

// Spot is a member's spot in a line. A member calls Come before that part of its work, Done behind it, and Leave at its end in any
// case. A nil Spot is in no line: nobody is ahead of it, and nobody behind.
type Spot struct {
	ahead *Spot
	come  chan struct{} // closed when Come or Leave is called
	done  chan struct{} // closed when Done or Leave is called

	mu    sync.Mutex
	came  bool
	ended bool
	ok    bool // Done came before Leave
}

// Join returns the spot behind all others.
func (l *Line) Join() *Spot {
	l.last = &Spot{ahead: l.last, come: make(chan struct{}), done: make(chan struct{})}
	return l.last
}

// Come waits until the member ahead is done, or until ctx ends. It fails with ErrAhead if that one has left without being done.
func (s *Spot) Come(ctx context.Context) error {
	if s == nil {
		return nil
	}
	s.arrive()
	if s.ahead == nil {
		return nil
	}
	select {
	case <-s.ahead.done:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if !s.ahead.isDone() {
		return ErrAhead
	}
	return nil
}

// Arrived is closed once the member has called Come or Leave.
func (s *Spot) Arrived() <-chan struct{} { return s.come }

// Done lets the member behind go on.
func (s *Spot) Done() {
	if s != nil {
		s.end(true)
	}
}

// Leave has the members behind fail, unless Done was called.
func (s *Spot) Leave() {
	s.arrive()
	s.end(false)
}

func (s *Spot) arrive() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.came {
		s.came = true
		close(s.come)
	}
}

func (s *Spot) end(ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.ended {
		s.ended, s.ok = true, ok
		close(s.done)
	}
}

func (s *Spot) isDone() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ok
}

type spotKey struct{}

// InLine returns a context of work that has a spot in a line.
func InLine(ctx context.Context, s *Spot) context.Context {
	return context.WithValue(ctx, spotKey{}, s)
}

// SpotOf returns the spot that work has in a line; nil: it has none.
func SpotOf(ctx context.Context) *Spot {
	s, _ := ctx.Value(spotKey{}).(*Spot)
	return s
}

// Package patience calls what may hang, such as a file system whose server is away,
// and waits for it no longer than it was told to. The plugin links it, so that it has
// nothing but the standard library.
package patience

import (
	"errors"
	"sync"
	"time"
)

// ErrHangs says that a call has not ended in time, or that an earlier one has not.
var ErrHangs = errors.New("its file system does not answer")

// Calls remembers which calls hang: nobody else waits for them, nor spends a thread on
// them. A call may hang for ever, though what it was for answers again: somebody has
// mounted something else there. So another one is tried after a pause, which doubles:
// a thousand threads would be lost in more than the age of the universe.
type Calls struct {
	mu      sync.Mutex
	hanging map[string]pause
}

// pause is how long no call is begun.
type pause struct {
	length time.Duration
	until  time.Time
}

// Hang reports whether a call of this name hangs, and would not be tried now.
func (c *Calls) Hang(name string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Now().Before(c.hanging[name].until)
}

// Any reports whether a call hangs whose name is one of some sort, and was waited for at
// least so long, not long ago: nobody may try that name again, and what it was for answer
// by now.
func (c *Calls) Any(least time.Duration, sort func(name string) bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	for name, p := range c.hanging {
		if p.length >= least && now.Before(p.until.Add(p.length)) && sort(name) {
			return true
		}
	}
	return false
}

// enter reports whether a call may be tried, and after which pause. Of those that hung
// one is, and keeps the others away meanwhile.
func (c *Calls) enter(name string, limit time.Duration) (after time.Duration, may bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p, hung := c.hanging[name]
	if !hung {
		return 0, true
	}
	now := time.Now()
	if now.Before(p.until) {
		return 0, false
	}
	c.hanging[name] = pause{p.length, now.Add(limit)}
	return p.length, true
}

// hung notes that a call hangs which was tried after a pause: the next one is twice as
// long, however many were tried beside it.
func (c *Calls) hung(name string, limit, after time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.hanging == nil {
		c.hanging = map[string]pause{}
	}
	p := max(limit, 2*after)
	c.hanging[name] = pause{p, time.Now().Add(p)}
}

func (c *Calls) ended(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.hanging, name)
}

// Call returns what do returns, or ErrHangs if that takes longer than limit. do goes on
// then; what it returns too late goes to drop, if that is not nil.
func Call[T any](c *Calls, name string, limit time.Duration, do func() (T, error), drop func(T)) (T, error) {
	var none T
	after, may := c.enter(name, limit)
	if !may {
		return none, ErrHangs
	}
	r := &running[T]{done: make(chan struct{})}
	go func() {
		value, err := do()
		if r.end(value, err) {
			c.ended(name)
			if err == nil && drop != nil {
				drop(value)
			}
		}
	}()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-r.done:
	case <-timer.C:
		if r.leave(func() { c.hung(name, limit, after) }) {
			return none, ErrHangs
		}
	}
	c.ended(name)
	return r.value, r.err
}

// running is one call, on a goroutine of its own.
type running[T any] struct {
	done  chan struct{}
	value T
	err   error

	mu          sync.Mutex
	ended, left bool // whether it has ended, and whether nobody waits for it
}

// end notes that the call has ended, and reports whether nobody waits for it.
func (r *running[T]) end(value T, err error) (left bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.value, r.err, r.ended = value, err, true
	close(r.done)
	return r.left
}

// leave reports whether nobody waits for the call from now on: false if it has ended.
func (r *running[T]) leave(note func()) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended {
		return false
	}
	r.left = true
	note() // before the call can end, and take the note back
	return true
}

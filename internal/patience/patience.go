// Package patience makes calls that may hang, such as to a file system whose server is
// away, and waits for each of them no longer than a limit. The plugin links it, so it
// imports the standard library alone.
package patience

import (
	"errors"
	"sync"
	"time"
)

// ErrHangs says that a call did not end in time, or was not made because an earlier one
// hangs.
var ErrHangs = errors.New("the file system does not answer")

// Calls remembers by name which calls hang, so that nobody else waits for the same call, or
// spends a thread on it. A call may hang for ever although its path answers again, because
// somebody has mounted something else there. So another call is tried after a pause, and each
// pause is twice the one before: to lose a thousand threads takes more than the age of the
// universe.
type Calls struct {
	mu      sync.Mutex
	hanging map[string]pause
}

// pause is a time during which no call of a name is begun.
type pause struct {
	length time.Duration
	until  time.Time
}

// Hang reports whether a call of this name hangs and Call would try no other call of the name now.
func (c *Calls) Hang(name string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Now().Before(c.hanging[name].until)
}

// Any reports whether a call hangs whose name the function `sort` accepts, and whose pause is as long
// as `least`, or longer. Any leaves out a call whose pause has been over for as long as the pause lasted:
// the call's path may answer by now, though nobody has tried it again.
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

// enter reports whether a call may be tried now, and after which pause. When the pause
// after a hang is over, enter lets one call through, and keeps the others away for limit.
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

// hung notes that a call hangs. `after` is the length of the pause after which the call was tried. The
// next pause is twice as long as `after`, and at least `limit`, however many calls were tried at the same
// time.
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

// Call returns what do returns, or ErrHangs if that takes longer than limit. In that case
// do goes on, and the value that it returns too late is given to drop, if drop is not nil.
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

// leave notes that nobody waits for the call from now on, and calls note. It returns false,
// and does neither, if the call has ended.
func (r *running[T]) leave(note func()) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended {
		return false
	}
	r.left = true
	note() // before the call can end: its end takes the note back
	return true
}

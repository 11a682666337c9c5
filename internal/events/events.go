// Package events keeps the agent's news: it remembers the latest events, and any number of
// readers can follow them. Publishing never waits for a reader.
package events

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync"
	"time"

	"github.com/berth-net/berth/api"
)

// Remember is how many events a hub remembers by default.
const Remember = 4096

// ErrClosed ends a stream whose hub was closed.
var ErrClosed = errors.New("the agent is stopping")

// LostError ends the stream of a reader that was slower than the hub's memory.
type LostError struct {
	From, To uint64 // the first and the last event that the reader did not get
}

func (e *LostError) Error() string {
	return fmt.Sprintf("the reader was too slow: the agent has forgotten events %d to %d", e.From, e.To)
}

// Hub numbers events, remembers the latest and wakes their readers.
type Hub struct {
	now func() time.Time

	mu     sync.Mutex
	ring   []kept // event n is at n % len(ring)
	last   uint64 // the latest event's number; 0: none yet
	about  map[string]shared
	wake   chan struct{} // closed by the next event if somebody waits, else nil
	closed bool
}

// kept is an event in the ring. Most of the memory of events is what they say of attachments. The
// events of one attachment differ only in the attachment's state, so they share the rest.
type kept struct {
	event     api.Event
	state     string
	releasing *time.Time
}

// shared is what the events of an owner share.
type shared struct {
	attachment *api.Attachment // without State and Releasing, which kept has
	last       uint64          // the number of the owner's latest event
}

// keep returns an event in the form in which the ring has it. The caller holds h.mu.
func (h *Hub) keep(e api.Event) kept {
	if e.Attachment == nil {
		return kept{event: e}
	}
	at := *e.Attachment
	k := kept{e, at.State, at.Releasing}
	at.State, at.Releasing = "", nil
	k.event.Attachment = &at
	if was := h.about[e.Owner].attachment; was != nil && reflect.DeepEqual(*was, at) {
		k.event.Attachment = was
	}
	h.about[e.Owner] = shared{k.event.Attachment, e.Seq}
	return k
}

// whole returns the event as it was published.
func (k kept) whole() api.Event {
	e := k.event
	if e.Attachment != nil {
		at := *e.Attachment
		at.State, at.Releasing = k.state, k.releasing
		e.Attachment = &at
	}
	return e
}

// NewHub returns a hub. `remember` is how many events the hub remembers.
func NewHub(remember int) *Hub {
	return &Hub{now: time.Now, ring: make([]kept, remember), about: map[string]shared{}}
}

// Publish gives an event its number and, if it has none, its time, and makes it available
// to every reader. It does not block. From then on the hub owns what e points to.
func (h *Hub) Publish(e api.Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return
	}
	h.last++
	e.Seq = h.last
	if e.Time.IsZero() {
		e.Time = h.now()
	}
	at := &h.ring[e.Seq%uint64(len(h.ring))]
	if old := at.event; h.about[old.Owner].last == old.Seq {
		delete(h.about, old.Owner)
	}
	*at = h.keep(e)
	h.rouse()
}

// Close ends all streams, each after it has read what was published before.
func (h *Hub) Close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	h.rouse()
}

func (h *Hub) rouse() {
	if h.wake != nil {
		close(h.wake)
		h.wake = nil
	}
}

// first is the number of the oldest event that is remembered.
func (h *Hub) first() uint64 {
	if n := uint64(len(h.ring)); h.last > n {
		return h.last - n + 1
	}
	return 1
}

// Stream is one reader's place in the news. It costs the hub nothing, and
// needs no closing.
type Stream struct {
	hub  *Hub
	next uint64
}

// Follow returns a stream of what happens from now on.
func (h *Hub) Follow() *Stream {
	h.mu.Lock()
	defer h.mu.Unlock()
	return &Stream{h, h.last + 1}
}

// FollowFrom returns a stream of what is remembered after event since, and of what happens
// from then on. A number that this hub has not reached yet comes from an earlier run of the
// agent, and all remembered events are later than that.
func (h *Hub) FollowFrom(since uint64) *Stream {
	h.mu.Lock()
	defer h.mu.Unlock()
	if since > h.last {
		since = 0
	}
	return &Stream{h, max(since+1, h.first())}
}

// Last returns the number of the event before the stream's next one.
func (s *Stream) Last() uint64 { return s.next - 1 }

// Next returns the stream's next event, waiting for it if need be. Its error
// is ErrClosed, a *LostError, or the context's.
func (s *Stream) Next(ctx context.Context) (api.Event, error) {
	for {
		e, wake, err := s.take()
		if wake == nil {
			return e, err
		}
		select {
		case <-wake:
		case <-ctx.Done():
			return api.Event{}, ctx.Err()
		}
	}
}

// take returns the next event or the error that ends the stream or, if there is neither
// yet, a channel to wait for.
func (s *Stream) take() (api.Event, <-chan struct{}, error) {
	h := s.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	if first := h.first(); s.next < first {
		return api.Event{}, nil, &LostError{s.next, first - 1}
	}
	if s.next <= h.last {
		e := h.ring[s.next%uint64(len(h.ring))].whole()
		s.next++
		return e, nil, nil
	}
	if h.closed {
		return api.Event{}, nil, ErrClosed
	}
	if h.wake == nil {
		h.wake = make(chan struct{})
	}
	return api.Event{}, h.wake, nil
}

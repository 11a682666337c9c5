package events

import (
	"context"
	"errors"
	"reflect"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berth-net/berth/api"
)

func publish(h *Hub, n int) {
	for range n {
		h.Publish(api.Event{Type: "attached"})
	}
}

// seqs reads n events, which have to be numbered from first on.
func seqs(t *testing.T, s *Stream, first uint64, n int) {
	t.Helper()
	for i := range n {
		e, err := s.Next(t.Context())
		if err != nil {
			t.Fatalf("event %d: %v", first+uint64(i), err)
		}
		if want := first + uint64(i); e.Seq != want {
			t.Fatalf("event %d came where %d should", e.Seq, want)
		}
	}
}

func TestFollow(t *testing.T) {
	h := NewHub(4)
	publish(h, 3)
	now, all, two := h.Follow(), h.FollowFrom(0), h.FollowFrom(2)
	publish(h, 1)
	seqs(t, now, 4, 1)
	seqs(t, all, 1, 4)
	seqs(t, two, 3, 2)
	if got := two.Last(); got != 4 {
		t.Errorf("Last = %d after event 4", got)
	}

	publish(h, 6) // 7..10 are remembered
	seqs(t, h.FollowFrom(0), 7, 4)
	seqs(t, h.FollowFrom(3), 7, 4)
	seqs(t, h.FollowFrom(9), 10, 1)
	seqs(t, h.FollowFrom(99), 7, 4) // a number from an earlier run of the agent
}

func TestLost(t *testing.T) {
	h := NewHub(4)
	slow := h.Follow()
	publish(h, 7)
	var lost *LostError
	if _, err := slow.Next(t.Context()); !errors.As(err, &lost) || *lost != (LostError{1, 3}) {
		t.Fatalf("a reader four events behind: %v, want events 1 to 3 lost", err)
	}
}

func TestTime(t *testing.T) {
	h := NewHub(4)
	at := time.Unix(1, 0)
	h.Publish(api.Event{Time: at})
	before := time.Now()
	h.Publish(api.Event{})
	s := h.FollowFrom(0)
	if e, _ := s.Next(t.Context()); !e.Time.Equal(at) {
		t.Errorf("the event's own time %v became %v", at, e.Time)
	}
	if e, _ := s.Next(t.Context()); e.Time.Before(before) {
		t.Errorf("an event without a time got %v", e.Time)
	}
}

func TestNextWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := NewHub(4)
		var got uint64
		for want := uint64(1); want <= 3; want++ {
			s := h.Follow()
			go func() {
				e, _ := s.Next(t.Context())
				got = e.Seq
			}()
			synctest.Wait()
			if got == want {
				t.Fatalf("event %d came before it was published", want)
			}
			publish(h, 1)
			synctest.Wait()
			if got != want {
				t.Fatalf("the reader of event %d was not woken", want)
			}
		}

		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := h.Follow().Next(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("after a minute without news: %v", err)
		}
	})
}

func TestClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := NewHub(4)
		s := h.Follow()
		var err error
		go func() { _, err = h.Follow().Next(t.Context()) }()
		synctest.Wait()
		publish(h, 1)
		h.Close()
		publish(h, 1)
		synctest.Wait()
		if err != nil {
			t.Errorf("the waiting reader did not get the last event: %v", err)
		}
		seqs(t, s, 1, 1)
		if _, err := s.Next(t.Context()); !errors.Is(err, ErrClosed) {
			t.Errorf("after the last event of a closed hub: %v", err)
		}
	})
}

// Readers of any speed get all events in order, or are told which they missed.
func TestMany(t *testing.T) {
	const events, readers = 5000, 20
	h := NewHub(256)
	var wait sync.WaitGroup
	for range readers {
		s := h.Follow()
		wait.Go(func() {
			for want := uint64(1); ; want++ {
				e, err := s.Next(t.Context())
				var lost *LostError
				switch {
				case errors.Is(err, ErrClosed) && want == events+1:
					return
				case errors.As(err, &lost) && lost.From == want && lost.To >= want:
					return
				case err != nil:
					t.Errorf("at event %d: %v", want, err)
					return
				case e.Seq != want:
					t.Errorf("event %d came where %d should", e.Seq, want)
					return
				}
			}
		})
	}
	publish(h, events)
	h.Close()
	wait.Wait()
}

// Readers get what was published, and the events of one attachment share what does not change.
func TestEventsShare(t *testing.T) {
	const remember = 16
	h := NewHub(remember)
	var all []api.Event
	releasing := time.Unix(5, 0)
	for i := range 3 * remember {
		owner := string(rune('a' + i/4))
		at := &api.Attachment{ID: owner, State: api.StateAttached, Addresses: []string{owner + "1", owner + "2"}, Created: time.Unix(int64(i/4), 0)}
		e := api.Event{Seq: uint64(i + 1), Time: time.Unix(int64(i), 0), Type: api.EventAttached, Owner: owner, Attachment: at}
		switch i % 4 {
		case 1:
			at.State, at.Releasing = api.StateReleasing, &releasing
		case 2:
			e.Type, e.Attachment = api.EventExhausted, nil
		case 3:
			at.MTU = 1400
		}
		all = append(all, e)
		h.Publish(e)
	}
	s := h.FollowFrom(0)
	for _, want := range all[2*remember:] {
		got, err := s.Next(t.Context())
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Fatalf("event %+v of %+v, %v; want %+v of %+v", got, got.Attachment, err, want, want.Attachment)
		}
	}
	kept := map[*api.Attachment]bool{}
	for _, k := range h.ring {
		if k.event.Attachment != nil {
			kept[k.event.Attachment] = true
		}
	}
	if want := remember / 4 * 2; len(kept) != want || len(h.about) != remember/4 {
		t.Errorf("%d attachments are kept, of %d owners, want %d", len(kept), len(h.about), want)
	}
}

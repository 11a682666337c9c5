package notice

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/berth-net/berth/internal/daemon"
	"github.com/berth-net/berth/internal/patience"
)

const (
	// pause is how long Keep waits between two writes, so that a node whose pods all fail writes no more than one Event a second.
	pause = time.Second
	// askFor is how long the API server has for one write.
	askFor = 10 * time.Second
	// A topic that repeats, as when the runtime tries the same pod again, is written again after the first of these waits, and then
	// ever more seldom.
	soonAgain, lateAgain = 30 * time.Second, 10 * time.Minute
	// The waits after a failed write.
	retryFirst, retryMost = 5 * time.Second, time.Minute
)

// Keep writes what was said, until ctx ends.
func (n *Notices) Keep(ctx context.Context) {
	for ctx.Err() == nil {
		e, made, wait := n.take()
		if wait != 0 {
			daemon.Sleep(ctx, wait, n.wake)
			continue
		}
		err := n.write(ctx, e, made)
		if ctx.Err() != nil {
			return
		}
		n.wrote(e, err)
		daemon.Sleep(ctx, pause, nil)
	}
}

// take returns the Event that is due first, and whether the API server has it; or how long none is due.
func (n *Notices) take() (e Event, made bool, wait time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	now := n.now()
	n.forget(now)
	var first *topic
	for _, t := range n.topics {
		if t.told < t.Count && (first == nil || t.next.Before(first.next) || t.next.Equal(first.next) && t.First.Before(first.First)) {
			first = t
		}
	}
	switch {
	case first == nil:
		return e, false, lasting
	case first.next.After(now):
		return e, false, first.next.Sub(now)
	}
	e = first.Event
	e.Name = nameOf(e.About, e.First)
	return e, first.told > 0, 0
}

// nameOf returns the name of an Event, as Kubernetes' own programs name Events.
func nameOf(o Object, first time.Time) string {
	const longest = 253 - len(".0123456789abcdef")
	return fmt.Sprintf("%s.%x", strings.TrimRight(o.Name[:min(len(o.Name), longest)], "-."), first.UnixNano())
}

func (n *Notices) write(ctx context.Context, e Event, made bool) error {
	ctx, cancel := context.WithTimeout(ctx, askFor)
	defer cancel()
	if made {
		if err := n.api.CountEvent(ctx, e); !errors.Is(err, ErrGone) {
			return err
		}
	}
	return n.api.CreateEvent(ctx, e)
}

// wrote notes how a write went. What the API server refuses counts as told: to ask again would not help.
func (n *Notices) wrote(e Event, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	again := false
	switch {
	case err == nil:
		n.counts.Written++
	case errors.Is(err, ErrOver):
	case errors.Is(err, ErrRefused):
		n.counts.Refused++
	default:
		again = true
		n.counts.Retried++
	}
	t := n.topics[key{e.About, e.Reason}]
	if t == nil {
		return
	}
	if again {
		t.tries++
		t.next = n.now().Add(patience.Backoff(retryFirst, retryMost, t.tries))
		return
	}
	t.tries = 0
	if t.First.Equal(e.First) { // else it is another Event by now
		t.told = e.Count
	}
	t.wait = min(max(2*t.wait, soonAgain), lateAgain)
	t.next = n.now().Add(t.wait)
}

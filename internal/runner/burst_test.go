package runner

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// pod asks for its networks one after the other, each of which takes as long as took, until ctx ends, and reports whether it has them all.
// Between two of them the agent has work of its own.
func (q *queue) pod(ctx context.Context, container string, networks int, took time.Duration) bool {
	for range networks {
		p, err := q.enter(ctx, "ADD", container, "ADD")
		if err != nil {
			return false
		}
		select {
		case <-time.After(took):
		case <-ctx.Done():
		}
		p.leave()
		if ctx.Err() != nil {
			return false
		}
		time.Sleep(10 * time.Millisecond)
	}
	return true
}

// Of a burst that is more than the places can serve in time, as many pods as possible have all their networks in time, instead of all
// pods some networks.
func TestBurst(t *testing.T) {
	const pods, networks, places, limit = 64, 3, 4, 30 * time.Second
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(places, backlog)
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		var whole atomic.Int32
		for i := range pods {
			go func() {
				if q.pod(ctx, fmt.Sprint("pod", i), networks, time.Second) {
					whole.Add(1)
				}
			}()
		}
		time.Sleep(limit + time.Second)
		synctest.Wait()
		// The places are taken all the time. A pod between two networks lets another pod begin; when time is over, such pods and those
		// that run have had some networks for nothing.
		least := places*int(limit/time.Second)/networks - 2*places
		if got := int(whole.Load()); got < least {
			t.Errorf("%d of %d pods have their networks in time, want %d", got, pods, least)
		}
	})
}

// A pod that asks for hundreds of networks at once takes one place, so that all others have theirs.
func TestPodOfManyNetworks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(2, backlog)
		ctx, cancel := context.WithTimeout(t.Context(), 40*time.Second)
		defer cancel()
		for range 200 {
			go q.pod(ctx, "large", 1, time.Second)
		}
		synctest.Wait()
		var whole atomic.Int32
		for i := range 10 {
			go func() {
				if q.pod(ctx, fmt.Sprint("pod", i), 3, time.Second) {
					whole.Add(1)
				}
			}()
		}
		time.Sleep(41 * time.Second)
		synctest.Wait()
		if whole.Load() != 10 {
			t.Errorf("%d of 10 small pods have their networks", whole.Load())
		}
	})
}

// A container's later ADDs go ahead of younger containers' ones, but for those after a DEL, and after the time for which an ADD may last.
func TestPrecedence(t *testing.T) {
	for name, test := range map[string]struct {
		between func(l *line)
		next    string
	}{
		"at once":           {func(*line) {}, "ADD-old-1"},
		"soon":              {func(*line) { time.Sleep(precedence - time.Second) }, "ADD-old-1"},
		"after a long time": {func(*line) { time.Sleep(precedence) }, "ADD-new-0"},
		"after a DEL": {func(l *line) {
			l.ask(l.t.Context(), "DEL-old-0")
			l.leave("DEL-old-0")
		}, "ADD-new-0"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLine(t, 2, 100)
				l.ask(t.Context(), "ADD-old-0")
				l.leave("ADD-old-0")
				l.ask(t.Context(), "ADD-a-0")
				l.ask(t.Context(), "ADD-b-0")
				l.ask(t.Context(), "ADD-new-0")
				test.between(l)
				l.ask(t.Context(), "ADD-old-1")
				l.leave("ADD-a-0")
				if got := l.ran[len(l.ran)-1]; got != test.next {
					t.Errorf("next runs %s, want %s; ran are %s", got, test.next, strings.Join(l.ran, " "))
				}
				l.stop()
				synctest.Wait()
			})
		})
	}
}

// Deletions that come while others have all places run besides, and then others wait until all have no more than the places.
func TestDeletionsCome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLine(t, 4, 100)
		for i := range 7 {
			l.ask(t.Context(), fmt.Sprintf("ADD-a%d-0", i))
		}
		for i := range 3 {
			l.ask(t.Context(), fmt.Sprintf("DEL-d%d-0", i))
		}
		l.want("ADD-a0-0", "ADD-a1-0", "ADD-a2-0", "ADD-a3-0", "DEL-d0-0", "DEL-d1-0")
		l.leave("DEL-d0-0")
		l.leave("ADD-a0-0")
		l.leave("ADD-a1-0")
		l.want("ADD-a0-0", "ADD-a1-0", "ADD-a2-0", "ADD-a3-0", "DEL-d0-0", "DEL-d1-0", "DEL-d2-0")
		l.leave("DEL-d1-0")
		l.leave("DEL-d2-0")
		l.want("ADD-a0-0", "ADD-a1-0", "ADD-a2-0", "ADD-a3-0", "DEL-d0-0", "DEL-d1-0", "DEL-d2-0", "ADD-a4-0", "ADD-a5-0")
		l.stop()
	})
}

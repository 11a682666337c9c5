package server

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

var (
	laneTidy  = Lane{Name: "tidy"}
	laneRest  = Lane{Name: "rest"}
	testLanes = []Lane{laneMake, laneBreak, laneLook, laneTidy, laneRest}
)

// anyOf reports whether any requests wait.
func anyOf(waiting map[Lane]int) bool {
	for _, n := range waiting {
		if n > 0 {
			return true
		}
	}
	return false
}

// enterAll has one request enter for each of the lanes, in their order, and returns a
// channel of those that got their places.
func enterAll(t *testing.T, q *queue, ls ...Lane) <-chan served {
	t.Helper()
	got := make(chan served, len(ls))
	for i, l := range ls {
		go func() {
			leave, err := q.enter(t.Context(), l)
			if err != nil {
				t.Errorf("%s %d: %v", l.Name, i, err)
				return
			}
			got <- served{fmt.Sprintf("%s %d", l.Name, i), leave}
		}()
		synctest.Wait()
	}
	return got
}

type served struct {
	name  string
	leave func()
}

// order lets requests leave one by one as soon as they have their places, and returns their
// names.
func order(got <-chan served) (names []string) {
	for {
		synctest.Wait()
		select {
		case s := <-got:
			names = append(names, s.name)
			s.leave()
		default:
			return names
		}
	}
}

func TestQueueTakesTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(1, 100, testLanes...)
		q.open()
		leave, err := q.enter(t.Context(), laneRest)
		must(t, err)
		got := enterAll(t, q, laneMake, laneMake, laneMake, laneMake, laneBreak, laneBreak, laneTidy, laneRest)
		if s := order(got); s != nil {
			t.Fatalf("%v executed beside another one", s)
		}
		leave()
		want := []string{"make 0", "break 4", "tidy 6", "rest 7", "make 1", "break 5", "make 2", "make 3"}
		if names := order(got); !slices.Equal(names, want) {
			t.Errorf("served %v, want %v", names, want)
		}
		if busy, waiting := q.load(); busy != 0 || anyOf(waiting) {
			t.Errorf("in the end %d execute and %v wait", busy, waiting)
		}
	})
}

// TestQueueKeepsPlaces fills the queue with requests that hang, and with deletions.
func TestQueueKeepsPlaces(t *testing.T) {
	for _, c := range []struct{ many, others Lane }{
		{laneMake, laneBreak}, {laneRest, laneBreak}, {laneBreak, laneMake}, {laneBreak, laneLook},
	} {
		t.Run(c.others.Name+" beside "+c.many.Name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q := newQueue(8, 100, testLanes...)
				q.open()
				many := enterAll(t, q, slices.Repeat([]Lane{c.many}, 20)...)
				if n := len(many); n != 6 {
					t.Fatalf("%d have 8 places, want 6", n)
				}
				others := enterAll(t, q, c.others, c.others, c.others)
				if n := len(others); n != 2 {
					t.Fatalf("%d others have a place beside them, want 2", n)
				}
				if names := order(others); len(names) != 3 {
					t.Errorf("only %v were served meanwhile", names)
				}
				if names := order(many); len(names) != 20 {
					t.Errorf("only %d of 20 were served", len(names))
				}
			})
		})
	}
}

func TestQueueFence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(4, 100, testLanes...)
		early, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := q.enter(early, laneMake)
		if !errors.Is(err, errRestoring) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("out of time before open: %v", err)
		}
		got := enterAll(t, q, laneMake, laneBreak)
		if len(got) != 0 {
			t.Fatalf("%d executed before open", len(got))
		}
		q.open()
		if names := order(got); len(names) != 2 {
			t.Errorf("open let %v in, want both", names)
		}
	})
}

// The queue refuses a request if too many wait. In multus #1346, requests without bound took all
// memory, again and again.
func TestQueueBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(1, 3, testLanes...)
		q.open()
		hung, _ := q.enter(t.Context(), laneMake)
		got := enterAll(t, q, laneMake, laneBreak)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		gone := make(chan error, 1)
		go func() {
			_, err := q.enter(ctx, laneMake)
			gone <- err
		}()
		synctest.Wait()
		if _, err := q.enter(t.Context(), laneLook); !errors.Is(err, errBacklog) {
			t.Fatalf("the fourth of three waiting: %v", err)
		}
		// One request leaves at its deadline, and makes room for another one to wait.
		if err := <-gone; !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, errRestoring) {
			t.Errorf("out of time: %v", err)
		}
		more := enterAll(t, q, laneLook)
		hung()
		if n := len(order(got)) + len(order(more)) + len(order(got)); n != 3 {
			t.Errorf("%d were served, want 3", n)
		}
	})
}

func TestQueueStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(1, 100, testLanes...)
		q.open()
		leave, _ := q.enter(t.Context(), laneMake)
		refused := make(chan error, 2)
		for range 2 {
			go func() {
				_, err := q.enter(t.Context(), laneBreak)
				refused <- err
			}()
		}
		synctest.Wait()
		q.stop()
		for range 2 {
			if err := <-refused; !errors.Is(err, errStopping) {
				t.Errorf("a waiting one: %v", err)
			}
		}
		leave()
		if _, err := q.enter(t.Context(), laneMake); !errors.Is(err, errStopping) {
			t.Errorf("a later one: %v", err)
		}
	})
}

// If a request's time ends at the moment when it is served, it either has its place and
// leaves it, or has none.
func TestQueueServedAndGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(2, 1000, testLanes...)
		q.open()
		for i := range 500 {
			go func() {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(1+i/10)*time.Millisecond)
				defer cancel()
				leave, err := q.enter(ctx, testLanes[i%len(testLanes)])
				if err == nil {
					time.Sleep(time.Millisecond) // on the bubble's clock
					leave()
				}
			}()
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if busy, waiting := q.load(); busy != 0 || q.leaving != 0 || q.waiting != 0 || anyOf(waiting) {
			t.Errorf("in the end %d execute (%d deletions) and %v (%d) wait", busy, q.leaving, waiting, q.waiting)
		}
	})
}

func BenchmarkQueue(b *testing.B) {
	q := newQueue(64, 4096, testLanes...)
	q.open()
	for b.Loop() {
		leave, err := q.enter(context.Background(), laneBreak)
		must(b, err)
		leave()
	}
}

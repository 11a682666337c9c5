package runner

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
)

// line is a queue whose requests wait in goroutines of a synctest bubble.
type line struct {
	*queue
	t    *testing.T
	ran  []string // the requests that have got their places, in that order
	has  map[string]*place
	fail map[string]error
}

func newLine(t *testing.T, places, backlog int) *line {
	return &line{queue: newQueue(places, backlog), t: t, has: map[string]*place{}, fail: map[string]error{}}
}

// ask has a request wait. Its name is VERB-CONTAINER-NUMBER; the container may be empty.
func (l *line) ask(ctx context.Context, name string) {
	parts := strings.Split(name, "-")
	go func() {
		p, err := l.enter(ctx, parts[0], parts[1], name)
		l.queue.mu.Lock()
		defer l.queue.mu.Unlock()
		if err != nil {
			l.fail[name] = err
			return
		}
		l.ran = append(l.ran, name)
		l.has[name] = p
	}()
	synctest.Wait()
}

// leave ends what runs.
func (l *line) leave(name string) {
	l.t.Helper()
	p := l.has[name]
	if p == nil {
		l.t.Fatalf("%s does not run; ran are %q", name, l.ran)
	}
	delete(l.has, name)
	p.leave()
	synctest.Wait()
}

func (l *line) want(ran ...string) {
	l.t.Helper()
	if !slices.Equal(l.ran, ran) {
		l.t.Fatalf("ran are %q, want %q", l.ran, ran)
	}
}

// A flood of ADDs has all places, and deletions half as many more; a flood of deletions leaves a place to ADDs.
func TestFloods(t *testing.T) {
	for _, places := range []int{2, 3, 4, 5, 8} {
		for _, test := range []struct {
			flood, other string
			most, free   int
		}{{"ADD", "DEL", places, places - places/2}, {"DEL", "ADD", places - max(places/4, 1), max(places/4, 1)}} {
			synctest.Test(t, func(t *testing.T) {
				l := newLine(t, places, 100)
				for i := range 2 * places {
					l.ask(t.Context(), fmt.Sprintf("%s-a%d-0", test.flood, i))
				}
				if len(l.ran) != test.most {
					t.Errorf("%d places: %d %s run, want %d", places, len(l.ran), test.flood, test.most)
				}
				for i := range places {
					l.ask(t.Context(), fmt.Sprintf("%s-b%d-0", test.other, i))
				}
				if len(l.ran) != test.most+test.free {
					t.Errorf("%d places: with a flood of %s, %d %s run, want %d", places, test.flood, len(l.ran)-test.most, test.other, test.free)
				}
				l.stop()
			})
		}
	}
}

// Lanes have their turns one after the other, and in a lane the first comes first.
func TestTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLine(t, 4, 100)
		for _, name := range []string{"ADD-a-0", "ADD-b-0", "DEL-c-0", "DEL-d-0", "ADD-e-0", "DEL-f-0", "ADD-g-0", "DEL-h-0", "GC--0", "STATUS--0"} {
			l.ask(t.Context(), name)
		}
		l.want("ADD-a-0", "ADD-b-0", "DEL-c-0", "DEL-d-0")
		for _, name := range []string{"ADD-a-0", "ADD-b-0", "DEL-c-0", "DEL-d-0"} {
			l.leave(name)
		}
		if got := fmt.Sprint(l.ran[4:]); strings.Index(got, "ADD-e-0") > strings.Index(got, "ADD-g-0") || strings.Index(got, "DEL-f-0") > strings.Index(got, "DEL-h-0") || len(l.ran) != 8 {
			t.Errorf("ran are %s", got)
		}
		l.leave("DEL-f-0")
		l.leave("ADD-e-0")
		l.leave("ADD-g-0")
		if !slices.Contains(l.ran, "GC--0") || !slices.Contains(l.ran, "STATUS--0") {
			t.Errorf("ran are %q", l.ran)
		}
		l.stop()
	})
}

// A container's requests run one at a time, in the order in which they came, and take nobody's place.
func TestSerial(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLine(t, 4, 100)
		l.ask(t.Context(), "ADD-a-0")
		l.ask(t.Context(), "DEL-a-1")
		l.ask(t.Context(), "ADD-a-2")
		leaves, leave := context.WithCancel(t.Context())
		l.ask(leaves, "DEL-a-3")
		l.ask(t.Context(), "DEL-b-0")
		l.ask(t.Context(), "DEL-c-0")
		l.ask(t.Context(), "ADD-d-0")
		l.want("ADD-a-0", "DEL-b-0", "DEL-c-0", "ADD-d-0")
		leave()
		synctest.Wait()
		if err := l.fail["DEL-a-3"]; !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "ADD-a-0 runs") {
			t.Errorf("a request that leaves: %v", err)
		}
		l.leave("DEL-b-0")
		l.leave("ADD-a-0")
		l.leave("DEL-a-1")
		l.want("ADD-a-0", "DEL-b-0", "DEL-c-0", "ADD-d-0", "DEL-a-1", "ADD-a-2")
		l.has["ADD-a-2"].leavePlace() // its process lingers
		l.ask(t.Context(), "ADD-e-0")
		l.ask(t.Context(), "DEL-a-4")
		l.want("ADD-a-0", "DEL-b-0", "DEL-c-0", "ADD-d-0", "DEL-a-1", "ADD-a-2", "ADD-e-0")
		l.leave("ADD-a-2")
		l.leave("DEL-a-4")
		for _, name := range []string{"DEL-c-0", "ADD-d-0", "ADD-e-0"} {
			l.leave(name)
		}
		if l.busy != [lanes]int{} || len(l.turns) != 0 {
			t.Errorf("in the end: %+v", l.queue)
		}
	})
}

// Too many requests are refused at once, and all that wait when the queue stops.
func TestRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLine(t, 2, 2)
		for _, name := range []string{"ADD-a-0", "ADD-a2-0", "ADD-b-0", "ADD-c-0", "ADD-d-0"} {
			l.ask(t.Context(), name)
		}
		if err := l.fail["ADD-d-0"]; !errors.Is(err, errBacklog) {
			t.Errorf("one too many: %v", err)
		}
		l.stop()
		synctest.Wait()
		l.ask(t.Context(), "DEL-e-0")
		for _, name := range []string{"ADD-b-0", "ADD-c-0", "DEL-e-0"} {
			if err := l.fail[name]; !errors.Is(err, errStopping) {
				t.Errorf("%s: %v", name, err)
			}
		}
		l.leave("ADD-a-0")
		l.leave("ADD-a2-0")
		if len(l.turns) != 0 {
			t.Errorf("turns that are left: %v", l.turns)
		}
	})
}

// Random requests that come, leave and end never break the bounds, and all that stay run in the end.
func TestQueueModel(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	synctest.Test(t, func(t *testing.T) {
		l := newLine(t, 5, 1000)
		leaves := map[string]context.CancelFunc{}
		for i := range 3000 {
			switch r.IntN(5) {
			case 0, 1:
				name := fmt.Sprintf("%s-%s-%d", []string{"ADD", "DEL"}[r.IntN(2)], []string{"", "a", "b", "c", "d"}[r.IntN(5)], i)
				ctx, cancel := context.WithCancel(t.Context())
				leaves[name] = cancel
				l.ask(ctx, name)
			case 2:
				for name, cancel := range leaves {
					cancel()
					delete(leaves, name)
					break
				}
			default:
				for name := range l.has {
					l.leave(name)
					break
				}
			}
			synctest.Wait()
			l.bounds()
		}
		for len(l.has) > 0 {
			for name := range l.has {
				l.leave(name)
				break
			}
			l.bounds()
		}
		if waiting := l.waiting[others].Len() + l.waiting[deletions].Len(); waiting > 0 || len(l.turns) > 0 {
			t.Errorf("%d requests wait for ever", waiting)
		}
		for _, cancel := range leaves {
			cancel()
		}
	})
}

// bounds checks what runs.
func (l *line) bounds() {
	l.t.Helper()
	of, adds := map[string]string{}, 0
	for name := range l.has {
		parts := strings.Split(name, "-")
		if other := of[parts[1]]; other != "" && parts[1] != "" {
			l.t.Fatalf("%s runs beside %s", name, other)
		}
		of[parts[1]] = name
		if parts[0] == "ADD" {
			adds++
		}
	}
	if dels := len(l.has) - adds; adds > l.places || dels > l.limit || len(l.has) > max(l.places, adds+l.own) {
		l.t.Fatalf("%d run, %d of them ADDs", len(l.has), adds)
	}
}

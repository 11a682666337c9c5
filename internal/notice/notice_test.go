package notice

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// server is an API server that has Events in memory.
type server struct {
	mu     sync.Mutex
	fails  error // of all writes
	gone   bool  // forgets all Events before the next write
	hangs  bool  // answers nothing
	events []Event
	writes int
}

func (s *server) CreateEvent(ctx context.Context, e Event) error {
	return s.write(ctx, func() error {
		if slices.ContainsFunc(s.events, func(o Event) bool { return o.Name == e.Name }) {
			return fmt.Errorf("there is an Event %s", e.Name)
		}
		s.events = append(s.events, e)
		return nil
	})
}

func (s *server) CountEvent(ctx context.Context, e Event) error {
	return s.write(ctx, func() error {
		i := slices.IndexFunc(s.events, func(o Event) bool { return o.Name == e.Name })
		if i < 0 {
			return ErrGone
		}
		s.events[i].Count, s.events[i].Last = e.Count, e.Last
		return nil
	})
}

func (s *server) write(ctx context.Context, do func() error) error {
	s.mu.Lock()
	s.writes++
	hangs := s.hangs
	s.mu.Unlock()
	if hangs {
		<-ctx.Done()
		return ctx.Err()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fails != nil {
		return s.fails
	}
	if s.gone {
		s.events, s.gone = nil, false
	}
	return do()
}

// set changes how the server is.
func (s *server) set(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}

// texts returns the Events, each with its count.
func (s *server) texts() (all []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.events {
		all = append(all, fmt.Sprintf("%s %s %s x%d", e.About.Name, e.Reason, e.Text, e.Count))
	}
	return all
}

func (s *server) want(t *testing.T, when string, writes int, texts ...string) {
	t.Helper()
	synctest.Wait()
	s.mu.Lock()
	wrote := s.writes
	s.mu.Unlock()
	if have := s.texts(); wrote != writes || !slices.Equal(have, texts) {
		t.Errorf("%s: %d writes, want %d; the Events are %q, want %q", when, wrote, writes, have, texts)
	}
}

// keep has a server told of notices until the test ends.
func keep(t *testing.T) (*Notices, *server) {
	s := &server{}
	n := New(s)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); n.Keep(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	return n, s
}

func full(pod, pool string) Notice {
	return Notice{About: Object{"Pod", "default", pod, "uid-" + pod}, Reason: "AddressesExhausted", Action: "Attach", Text: pool + " is full", Of: pool}
}

// What repeats is one Event, whose count is written ever more seldom. What changes is another Event.
func TestOneEventForEachPodAndReason(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, s := keep(t)
		n.Say(full("a", "blue"))
		s.want(t, "at once", 1, "a AddressesExhausted blue is full x1")
		for range 120 { // as a kubelet does for an hour, whose times are not Berth's
			time.Sleep(29 * time.Second)
			n.Say(full("a", "blue"))
		}
		if s.set(func() {}); s.writes > 12 || len(s.events) != 1 || s.events[0].Count < 90 {
			t.Errorf("after an hour of ADDs there were %d writes: %q", s.writes, s.texts())
		}
		if first, last := s.events[0].First, s.events[0].Last; last.Sub(first) < 45*time.Minute {
			t.Errorf("the Event is from %v until %v", first, last)
		}
		time.Sleep(lasting + time.Minute)
		s.set(func() { s.events, s.writes = nil, 0 })
		n.Say(full("b", "red"))
		time.Sleep(pause / 2)
		n.Say(full("a", "red")) // which is another one before it is written
		n.Say(full("a", "green"))
		time.Sleep(pause)
		s.want(t, "two pods", 2, "b AddressesExhausted red is full x1", "a AddressesExhausted green is full x1")
		n.Say(full("a", "blue"))
		time.Sleep(10 * time.Second)
		s.want(t, "another pool, soon", 2, "b AddressesExhausted red is full x1", "a AddressesExhausted green is full x1")
		time.Sleep(soonAgain)
		s.want(t, "another pool", 3, "b AddressesExhausted red is full x1", "a AddressesExhausted green is full x1", "a AddressesExhausted blue is full x1")
	})
}

// While the API server does not answer, nothing waits for it, what was said is kept, and what has no room is dropped and counted.
func TestAPIServerIsAway(t *testing.T) {
	for name, breaks := range map[string]func(*server, bool){
		"it hangs": func(s *server, is bool) { s.hangs = is },
		"it fails": func(s *server, is bool) {
			if s.fails = nil; is {
				s.fails = errors.New("500")
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n, s := keep(t)
				s.set(func() { breaks(s, true) })
				began := time.Now()
				for i := range most + 44 {
					n.Say(full(fmt.Sprintf("pod-%d", i), "blue"))
				}
				n.Say(Notice{About: Node("n"), Reason: "Unrouted", Text: "no way"}) // for which there is room always
				if took := time.Since(began); took != 0 {
					t.Errorf("to say it took %v", took)
				}
				time.Sleep(10 * time.Minute)
				if c := n.Counts(); c.Dropped != 44 || c.Written != 0 || c.Retried == 0 || c.Refused != 0 {
					t.Errorf("the counts are %+v", c)
				}
				s.set(func() { breaks(s, false) })
				time.Sleep(most*pause + 2*retryMost)
				if c := n.Counts(); c.Written != most+1 || !slices.Contains(s.texts(), "n Unrouted no way x1") {
					t.Errorf("then the counts are %+v, and there are %d Events", c, len(s.texts()))
				}
			})
		})
	}
}

// An Event that the API server has forgotten is made anew. One that it refuses, as in a namespace that is going, is not tried again
// before it is said again.
func TestEventsThatAreGoneOrRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, s := keep(t)
		n.Say(full("a", "blue"))
		time.Sleep(soonAgain)
		s.set(func() { s.gone = true })
		n.Say(full("a", "blue"))
		s.want(t, "forgotten", 3, "a AddressesExhausted blue is full x2")
		s.set(func() { s.fails = fmt.Errorf("forbidden: %w", ErrRefused) })
		n.Say(full("b", "blue"))
		time.Sleep(50 * time.Minute)
		s.want(t, "refused", 4, "a AddressesExhausted blue is full x2")
		if c := n.Counts(); c != (Counts{Written: 2, Refused: 1}) {
			t.Errorf("the counts are %+v", c)
		}
	})
}

// What is tried again is not lost. Nor is an Event in a namespace that goes. What nobody could write for an hour is.
func TestWhatIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, s := keep(t)
		s.set(func() { s.fails = errors.New("500") })
		n.Say(full("a", "blue"))
		time.Sleep(time.Minute)
		s.set(func() { s.fails = nil })
		time.Sleep(retryMost)
		if c := n.Counts(); c.Written != 1 || c.Retried == 0 || c.Refused+c.Dropped != 0 {
			t.Errorf("after a failure for a minute: %+v", c)
		}
		s.set(func() { s.fails = fmt.Errorf("forbidden: %w", ErrOver) })
		writes := s.writes
		n.Say(full("b", "blue"))
		time.Sleep(10 * time.Minute)
		if c := n.Counts(); s.writes != writes+1 || c.Refused+c.Dropped != 0 {
			t.Errorf("after %d writes into a namespace that goes: %+v", s.writes-writes, c)
		}
		s.set(func() { s.fails = errors.New("500") })
		n.Say(full("c", "blue"))
		time.Sleep(lasting + 2*retryMost)
		if c := n.Counts(); c.Written != 1 || c.Refused != 0 || c.Dropped != 1 {
			t.Errorf("after a failure for longer than an hour: %+v", c)
		}
	})
}

// When more pods than there is room for have troubles at once, the node's trouble is told all the same, and so, in turn, are all pods'
// and their ends.
func TestMoreTroublesThanRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, s := keep(t)
		const pods = most + 44
		var mu sync.Mutex
		var all []Trouble
		for i := range pods {
			about := full(fmt.Sprintf("pod-%d", i), "").About
			all = append(all, Trouble{Notice: Notice{About: about, Reason: "Owed"}, Mended: Notice{About: about, Reason: "Paid", Normal: true}})
		}
		all = append(all, Trouble{Notice: Notice{About: Node("n"), Reason: "Owed"}, Mended: Notice{About: Node("n"), Reason: "Paid", Normal: true}})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			n.Watch(ctx, func() []Trouble { mu.Lock(); defer mu.Unlock(); return all })
		}()
		defer func() { cancel(); <-done }()
		told := func(reason string) (n int, node bool) {
			s.mu.Lock()
			defer s.mu.Unlock()
			for _, e := range s.events {
				if e.Reason == reason {
					n++
					node = node || e.About == Node("n")
				}
			}
			return n, node
		}
		time.Sleep(remind - time.Minute)
		if have, node := told("Owed"); have != pods+1 || !node {
			t.Errorf("there are Events of %d troubles, want %d; of the node: %v", have, pods+1, node)
		}
		mu.Lock()
		all = nil
		mu.Unlock()
		time.Sleep(remind)
		if have, node := told("Paid"); have != pods+1 || !node {
			t.Errorf("there are Events of %d ends, want %d; of the node: %v", have, pods+1, node)
		}
		if c := n.Counts(); c.Dropped != 0 {
			t.Errorf("the counts are %+v", c)
		}
	})
}

// Room for new topics is made of those that are written and do not repeat.
func TestRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, s := keep(t)
		for i := range 2 * most {
			n.Say(full(fmt.Sprintf("pod-%d", i), "blue"))
			time.Sleep(pause)
		}
		synctest.Wait()
		if c := n.Counts(); c.Written != 2*most || c.Dropped != 0 || len(n.topics) > most {
			t.Errorf("the counts are %+v with %d topics, of %d Events", c, len(n.topics), len(s.texts()))
		}
	})
}

// A trouble is told when it comes, when it is another one, every half hour as long as it lasts, and when it is mended.
func TestTrouble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, s := keep(t)
		var of string
		var mu sync.Mutex
		set := func(to string) { mu.Lock(); defer mu.Unlock(); of = to }
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			n.Watch(ctx, func() []Trouble {
				mu.Lock()
				defer mu.Unlock()
				if of == "" {
					return nil
				}
				return []Trouble{{
					Notice: Notice{About: Node("n"), Reason: "Unrouted", Text: "no way to " + of, Of: of},
					Mended: Notice{About: Node("n"), Reason: "Routed", Text: "all is well", Normal: true},
				}}
			})
		}()
		defer func() { cancel(); <-done }()
		time.Sleep(time.Minute + review/2) // between two looks
		s.want(t, "nothing is wrong", 0)
		set("b")
		time.Sleep(review)
		set("")
		time.Sleep(3 * review)
		s.want(t, "it was wrong for a moment", 0)
		set("b")
		time.Sleep(2 * review)
		s.want(t, "it is wrong", 1, "n Unrouted no way to b x1")
		time.Sleep(remind + time.Minute)
		s.want(t, "it lasts", 2, "n Unrouted no way to b x2")
		set("b and c")
		time.Sleep(review + 2*soonAgain)
		s.want(t, "it is another one", 3, "n Unrouted no way to b x2", "n Unrouted no way to b and c x1")
		set("")
		time.Sleep(review + pause)
		s.want(t, "it is mended", 4, "n Unrouted no way to b x2", "n Unrouted no way to b and c x1", "n Routed all is well x1")
		time.Sleep(2 * time.Hour)
		s.want(t, "nothing is wrong any more", 4, "n Unrouted no way to b x2", "n Unrouted no way to b and c x1", "n Routed all is well x1")
	})
}

// The names of Events are names that Kubernetes takes.
func TestNames(t *testing.T) {
	for _, name := range []string{"web-0", strings.Repeat("a", 253), strings.Repeat("a", 235) + "-.b" + strings.Repeat("a", 15)} {
		event := nameOf(Object{Name: name}, time.Now())
		if len(event) > 253 || strings.Contains(event, "-.") || strings.Contains(event, "..") || !strings.HasPrefix(event, name[:5]) {
			t.Errorf("the Event of %s is %s, of %d characters", name, event, len(event))
		}
	}
}

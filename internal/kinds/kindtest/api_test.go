package kindtest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/berth-net/berth/internal/hold"
)

// A toy kind of what an API gives, as a cloud does: a grant, whose number the API chooses
// and nobody else has. The API may say that it is asked too often, or not answer; grants
// may come to their end.

type grantSpec struct {
	K      string `json:"k"` // several kinds may ask one API
	Place  string `json:"place"`
	Number int    `json:"number,omitempty"` // discovered
}

func (s *grantSpec) Kind() string   { return s.K }
func (s *grantSpec) String() string { return s.K + " at " + s.Place }

// Names returns the number, once it is known.
func (s *grantSpec) Names() []hold.Name {
	if s.Number == 0 {
		return nil
	}
	return []hold.Name{{Space: "number", Name: fmt.Sprint(s.Number)}}
}

// api is the API that the kind asks.
type api struct {
	mu     sync.Mutex
	grants map[string]grant // by what it is called
	last   int              // number that was given
	later  time.Time        // it is not to be asked before
	hung   chan struct{}    // nil: it answers
}

type grant struct {
	owner  hold.ID
	number int
}

var errOften = errors.New("asked too often")

func newAPI() *api { return &api{grants: map[string]grant{}} }

// ask is a call of the API about a hold.
func (a *api) ask(ctx context.Context, do func() error) error {
	a.mu.Lock()
	hung := a.hung
	a.mu.Unlock()
	if hung != nil {
		select {
		case <-hung:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if time.Now().Before(a.later) {
		return &hold.LaterError{At: a.later, Err: errOften}
	}
	return do()
}

func (a *api) verify(ctx context.Context, h hold.Hold) error {
	return a.ask(ctx, func() error {
		s := h.Spec.(*grantSpec)
		switch g, ok := a.grants[s.String()]; {
		case !ok || g.owner != h.Owner:
			return hold.ErrGone
		case g.number != s.Number:
			return hold.ErrChanged
		}
		return nil
	})
}

func (a *api) release(ctx context.Context, h hold.Hold) error {
	return a.ask(ctx, func() error {
		if a.grants[h.Spec.String()].owner == h.Owner {
			delete(a.grants, h.Spec.String())
		}
		return nil
	})
}

// lose takes a grant away.
func (a *api) lose(h hold.Hold) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.grants, h.Spec.String())
}

// throttle makes the API answer that it is asked too often.
func (a *api) throttle(d time.Duration) (until time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.later = time.Now().Add(d)
	return a.later
}

// hang keeps the API from answering.
func (a *api) hang() (answer func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	hung := make(chan struct{})
	a.hung = hung
	return func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		close(hung)
		a.hung = nil
	}
}

// has returns in words what is granted.
func (a *api) has() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	var lines []string
	for what, g := range a.grants {
		lines = append(lines, fmt.Sprintf("%s: %d of %s", what, g.number, g.owner))
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// kind returns a kind of that API, which discovers names. options set its other options.
func (a *api) kind(name string, stage hold.Stage, options ...func(*hold.Kind)) hold.Kind {
	k := hold.Kind{
		Stage:     stage,
		New:       func() hold.Spec { return &grantSpec{K: name} },
		Discovers: true,
		Verify:    hold.VerifyEach(a.verify),
		Release:   hold.Each(a.release),
	}
	for _, option := range options {
		option(&k)
	}
	k.Acquire = func(ctx context.Context, h hold.Hold) error {
		return a.ask(ctx, func() error {
			s := h.Spec.(*grantSpec)
			g, ok := a.grants[s.String()]
			switch {
			case ok && g.owner != h.Owner:
				return fmt.Errorf("%w: %s", hold.ErrForeign, g.owner)
			case !ok && k.Ends && s.Number != 0:
				return fmt.Errorf("%s: it has ended: %w", s, hold.ErrGone)
			case !ok:
				a.last++
				g = grant{h.Owner, a.last}
				a.grants[s.String()] = g
			}
			s.Number = g.number
			return nil
		})
	}
	k.Find = func(ctx context.Context, _ *hold.Look) (found []hold.Hold, err error) {
		err = a.ask(ctx, func() error {
			for what, g := range a.grants {
				if k, place, _ := strings.Cut(what, " at "); k == name {
					found = append(found, hold.Hold{Owner: g.owner, Spec: &grantSpec{K: k, Place: place, Number: g.number}})
				}
			}
			return nil
		})
		return found, err
	}
	return k
}

// The options that the toy kind can have.
func thatEnds(k *hold.Kind)      { k.Ends = true }
func thatWaits(k *hold.Kind)     { k.Waits = true }
func thatIsLimited(k *hold.Kind) { k.Try, k.Look = time.Minute, time.Second }

// granted is the toy kind with options, as a kind under test.
func granted(options ...func(*hold.Kind)) Kind {
	a := newAPI()
	return Kind{
		Kind: a.kind("grant", hold.Reserve, options...),
		Fake: true,
		Spec: func(_ testing.TB, owner hold.ID) hold.Spec { return &grantSpec{K: "grant", Place: string(owner)} },
		Foreign: func(_ testing.TB, h hold.Hold) func() error {
			a.mu.Lock()
			defer a.mu.Unlock()
			foreign := grant{"a stranger", -1}
			a.grants[h.Spec.String()] = foreign
			return func() error {
				a.mu.Lock()
				defer a.mu.Unlock()
				if g := a.grants[h.Spec.String()]; g != foreign {
					return fmt.Errorf("%v", g)
				}
				return nil
			}
		},
		Snapshot: a.has,
		End:      func(_ testing.TB, h hold.Hold) { a.lose(h) },
		Lose:     func(_ testing.TB, h hold.Hold) { a.lose(h) },
		Throttle: func(testing.TB) (time.Time, func()) {
			return a.throttle(time.Hour), func() { a.throttle(0) }
		},
		Hang: func(testing.TB) func() { return a.hang() },
	}
}

// A kind with all options, and kinds with some of them.
func TestToyOptions(t *testing.T) {
	for name, options := range map[string][]func(*hold.Kind){
		"all":      {thatEnds, thatWaits, thatIsLimited},
		"ends":     {thatEnds},
		"waits":    {thatWaits},
		"limited":  {thatIsLimited},
		"discover": nil,
	} {
		t.Run(name, func(t *testing.T) { Run(t, granted(options...)) })
	}
}

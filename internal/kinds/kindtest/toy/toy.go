// Package toy is an API of the test's own, such as a cloud's API, with kinds whose things are grants of
// the API. The API chooses the grants' numbers. It can do to the kinds' callers all that such an API
// may do: say that they ask too often, not answer, lose a grant, let a grant come to its end, give a
// number twice. The package is for tests of kinds' options, and for models.
package toy

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/berth-net/berth/internal/hold"
)

// ErrOften is what the API answers while Throttle is in force.
var ErrOften = errors.New("asked too often")

// Spec is the spec of all kinds of an API.
type Spec struct {
	K      string `json:"k"` // several kinds may ask one API
	Place  string `json:"place"`
	Number int    `json:"number,omitempty"` // the API's choice, which Acquire discovers
}

// Kind returns the name of the spec's kind.
func (s *Spec) Kind() string   { return s.K }
func (s *Spec) String() string { return s.K + " at " + s.Place }

// Names returns the number, once it is known.
func (s *Spec) Names() []hold.Name {
	if s.Number == 0 {
		return nil
	}
	return []hold.Name{{Space: "number", Name: fmt.Sprint(s.Number)}}
}

// API is the API. All methods may be called at once.
type API struct {
	mu     sync.Mutex
	grants map[string]grant // by the grant's name (Spec.String)
	last   int              // the number that the API gave last
	twice  int              // how many new grants are to get a number that another owner has
	later  time.Time        // nobody is to ask the API before this time
	hung   chan struct{}    // nil: the API answers
}

type grant struct {
	owner  hold.ID
	number int
	ended  bool
}

// New returns an API that has granted nothing.
func New() *API { return &API{grants: map[string]grant{}} }

// ask is a call of the API about a hold.
func (a *API) ask(ctx context.Context, do func() error) error {
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
		return &hold.LaterError{At: a.later, Err: ErrOften}
	}
	return do()
}

// Kind returns a kind of the API, which discovers names. options set its other options.
func (a *API) Kind(name string, stage hold.Stage, options ...func(*hold.Kind)) hold.Kind {
	k := hold.Kind{
		Stage:     stage,
		New:       func() hold.Spec { return &Spec{K: name} },
		Discovers: true,
		Acquire:   a.acquire,
		Verify:    hold.VerifyEach(a.verify),
		Release:   hold.Each(a.release),
		Find:      func(ctx context.Context, _ *hold.Look) ([]hold.Hold, error) { return a.find(ctx, name) },
	}
	for _, option := range options {
		option(&k)
	}
	return k
}

func (a *API) acquire(ctx context.Context, h hold.Hold) error {
	return a.ask(ctx, func() error {
		s := h.Spec.(*Spec)
		g, ok := a.grants[s.String()]
		switch {
		case ok && g.owner != h.Owner:
			return fmt.Errorf("%w: %s", hold.ErrForeign, g.owner)
		case g.ended:
			return fmt.Errorf("%s: %w", s, hold.ErrEnded)
		case !ok:
			g = grant{owner: h.Owner, number: a.number(h.Owner)}
			a.grants[s.String()] = g
		}
		s.Number = g.number
		return nil
	})
}

// number chooses the number of a new grant. The caller holds a.mu.
func (a *API) number(owner hold.ID) int {
	if a.twice > 0 {
		anothers := 0
		for _, g := range a.grants {
			if g.owner != owner && (anothers == 0 || g.number < anothers) {
				anothers = g.number
			}
		}
		if anothers != 0 {
			a.twice--
			return anothers
		}
	}
	a.last++
	return a.last
}

func (a *API) verify(ctx context.Context, h hold.Hold) error {
	return a.ask(ctx, func() error {
		s := h.Spec.(*Spec)
		switch g, ok := a.grants[s.String()]; {
		case !ok || g.owner != h.Owner:
			return hold.ErrGone
		case g.ended:
			return hold.ErrEnded
		case g.number != s.Number:
			return hold.ErrChanged
		}
		return nil
	})
}

func (a *API) release(ctx context.Context, h hold.Hold) error {
	return a.ask(ctx, func() error {
		if a.grants[h.Spec.String()].owner == h.Owner {
			delete(a.grants, h.Spec.String())
		}
		return nil
	})
}

func (a *API) find(ctx context.Context, kind string) (found []hold.Hold, err error) {
	err = a.ask(ctx, func() error {
		for what, g := range a.grants {
			if k, place, _ := strings.Cut(what, " at "); k == kind {
				found = append(found, hold.Hold{Owner: g.owner, Spec: &Spec{K: k, Place: place, Number: g.number}})
			}
		}
		return nil
	})
	return found, err
}

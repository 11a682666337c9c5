package toy

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/berth-net/berth/internal/hold"
)

// Lose takes a hold's grant away.
func (a *API) Lose(h hold.Hold) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.grants, h.Spec.String())
}

// End lets a hold's grant, if it is there, come to its end. The API knows the grant until a kind
// releases it.
func (a *API) End(h hold.Hold) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if g, ok := a.grants[h.Spec.String()]; ok {
		g.ended = true
		a.grants[h.Spec.String()] = g
	}
}

// GiveTwice lets the next n new grants have a number that another owner has, if another owner
// has any.
func (a *API) GiveTwice(n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.twice = n
}

// Foreign gives a hold's place to a stranger. intact returns an error if the stranger's grant is gone
// or has changed.
func (a *API) Foreign(h hold.Hold) (intact func() error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	foreign := grant{owner: "a stranger", number: -1}
	a.grants[h.Spec.String()] = foreign
	return func() error {
		a.mu.Lock()
		defer a.mu.Unlock()
		if g := a.grants[h.Spec.String()]; g != foreign {
			return fmt.Errorf("%v", g)
		}
		return nil
	}
}

// Throttle makes the API answer for a while that callers ask too often.
func (a *API) Throttle(d time.Duration) (until time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.later = time.Now().Add(d)
	return a.later
}

// Hang keeps the API from answering.
func (a *API) Hang() (answer func()) {
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

// Has reports whether a hold's grant is there and has not ended, also while the API answers
// otherwise.
func (a *API) Has(h hold.Hold) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	g := a.grants[h.Spec.String()]
	return g.owner == h.Owner && !g.ended
}

// String returns the grants in words, a line for each.
func (a *API) String() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	var lines []string
	for what, g := range a.grants {
		line := fmt.Sprintf("%s: %d of %s", what, g.number, g.owner)
		if g.ended {
			line += ", ended"
		}
		lines = append(lines, line)
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// The options that a kind can have.

// Ends says that grants come to their end by themselves.
func Ends(k *hold.Kind) { k.Ends = true }

// Waits says that other owners need a grant.
func Waits(k *hold.Kind) { k.Waits = true }

// Limited gives the kind a limit of its own for a try, and another limit for a look.
func Limited(k *hold.Kind) { k.Try, k.Look = time.Minute, time.Second }

package engine_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berth-net/berth/internal/hold"
)

// A release hangs and does not heed its context: it is owed, with one event, as soon as the context
// has ended for a while, and the owner's other holds go past it. The engine does not try the hold a
// second time meanwhile. When the release answers at last, with an error or without one, the owner
// goes.
func TestDeafReleaseIsOwed(t *testing.T) {
	for name, answer := range map[string]error{"success": nil, "error": errors.New("device busy")} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, n *node) {
				o := owner("", "pod", "wire", "rule")
				o.Ordered = true
				take(t, n, o)
				let, calls := make(chan struct{}), 0
				n.world.before = on("release", func(_ context.Context, h hold.Hold) error {
					if h.Spec.Kind() != "rule" {
						return nil
					}
					if calls++; calls > 1 {
						return nil
					}
					<-let
					return answer
				})
				must(t, n.Release(t.Context(), []hold.ID{o.ID}))
				synctest.Wait()
				if owed := n.Owed(""); len(owed) != 0 {
					t.Errorf("owed at once: %v", owed)
				}
				time.Sleep(2 * n.Try)
				synctest.Wait()
				for range 2 { // Retry counts the try that is under way, and makes none beside it
					owed := n.Owed("")
					if len(owed) != 1 || owed[0].Hold.Spec.Kind() != "rule" || owed[0].Tries != 1 || owed[0].Next.After(time.Now()) {
						t.Errorf("owed: %+v", owed)
					}
					if n.Retry(o.ID) != 1 {
						t.Error("the try that is under way does not count")
					}
					synctest.Wait()
				}
				if log := n.world.done(); !slices.ContainsFunc(log, func(s string) bool { return strings.HasPrefix(s, "release wire ") }) || calls != 1 {
					t.Errorf("%d calls, and the log %q", calls, log)
				}
				want := 1
				if answer != nil {
					want = 2 // Retry has asked what becomes of the try
				}
				close(let)
				must(t, n.Wait(t.Context(), o.ID))
				n.Retry(o.ID)
				must(t, n.Wait(t.Context(), o.ID))
				if owed, told := n.Owed(""), strings.Count(n.eventTypes(o.ID), "owed"); len(owed) != 0 || told != want {
					t.Errorf("still owed: %v, and told %d times", owed, told)
				}
				wantResidue(t, n, empty)
			})
		})
	}
}

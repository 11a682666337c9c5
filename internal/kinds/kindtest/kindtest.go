// Package kindtest has the test that every kind must pass: its holds can be taken and given
// back any number of times, beside any other holds, and the kind never touches another
// owner's things or anybody else's.
//
//	kindtest.Run(t, kindtest.Kind{
//		Kind: link.New(...),
//		Spec: func(t testing.TB, owner hold.ID) hold.Spec {
//			return &link.Spec{Name: ..., Netns: nettest.Pod(t).Ref(), ...}
//		},
//		Example:  &link.Spec{...},
//		Snapshot: func() string { return nettest.Snapshot(t, nil).String() },
//		Foreign: func(t testing.TB, h hold.Hold) func() error {
//			... // make a link that has that name and is not ours
//		},
//	})
package kindtest

import (
	"context"
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-net/berth/internal/hold"
)

// Kind is a kind under test.
type Kind struct {
	hold.Kind

	// Spec makes a spec for a hold of owner, in a place of its own, which no hold has yet. With Alone,
	// all specs may have the same place.
	Spec func(t testing.TB, owner hold.ID) hold.Spec
	// Alone says that only one owner at a time can have a hold of this kind, such as an
	// agent's only table. Another owner's Acquire then returns hold.ErrForeign.
	Alone bool
	// Unseen says that Verify cannot see whether a hold is there, and always returns nil:
	// Acquire makes nothing, and Release removes only what the owner leaves behind.
	Unseen bool
	// Fake says that this kind is a stand-in for a real kind and has the real kind's specs. The real
	// kind's test has the golden file, so that this test needs no Example.
	Fake bool
	// Example has a value other than zero in each of its fields. The test compares its
	// JSON with testdata/<kind>.json (go test -update writes that file).
	Example hold.Spec
	// Snapshot describes everything that holds of this kind can leave behind. The checks
	// compare snapshots. Optional.
	Snapshot func() string
	// Foreign puts somebody else's thing where h would go. intact returns an error if that
	// thing is not there any more, or has changed. Optional.
	Foreign func(t testing.TB, h hold.Hold) (intact func() error)
	// Disguise makes h's thing, which is there, differ from its spec, as another program
	// might: best by another name, so that nobody finds the thing where its name would lead. Required,
	// unless the kind is Unseen or Undisguised says why not.
	Disguise func(t testing.TB, h hold.Hold)
	// Undisguised says why there is no Disguise.
	Undisguised string
	// End lets h's thing, which is there, come to its end by itself. Required if the kind
	// Ends.
	End func(t testing.TB, h hold.Hold)
	// Lose takes h's thing, which is there, away. Required if the kind Waits and does not
	// end.
	Lose func(t testing.TB, h hold.Hold)
	// Throttle makes whatever the kind calls answer that callers ask too often, up to the time until,
	// or until the check calls over. Optional.
	Throttle func(t testing.TB) (until time.Time, over func())
	// Hang makes whatever the kind calls give no answer until the check calls answer. Required if the
	// kind has a Try or a Look.
	Hang func(t testing.TB) (answer func())
}

// Run tests a kind. Each check is a subtest with holds of its own.
func Run(t *testing.T, k Kind) {
	for _, c := range checks {
		t.Run(c.name, func(t *testing.T) { c.run(t, k) })
	}
	if !k.Fake {
		t.Run("golden", func(t *testing.T) { golden(t, k) })
	}
}

// checks are all checks, each named after what it does.
var checks = []struct {
	name string
	run  func(testing.TB, Kind)
}{
	{"take-twice", takeTwice},
	{"release-twice", releaseTwice},
	{"release-untaken", releaseUntaken},
	{"release-from-record", releaseFromRecord},
	{"leave-other-owner", leaveOtherOwner},
	{"leave-foreign", leaveForeign},
	{"batch", batch},
	{"at-once", atOnce},
	{"find", find},
	{"cut", cut},
	{"cut-beside-release", cutBesideRelease},
	{"disguised", disguised},
	{"discovers", discovers},
	{"ends", ends},
	{"later", later},
	{"limits", limits},
	{"waits", waits},
}

// try is a kind in one check.
type try struct {
	testing.TB
	Kind
}

// fresh returns a hold of a new owner. fresh has the hold released at the end of the check, so that a
// check that fails leaves nothing for the next check.
func (t try) fresh() hold.Hold {
	t.Helper()
	owner := hold.NewID()
	h := hold.Hold{Owner: owner, Spec: t.Spec(t.TB, owner)}
	if got, want := h.Spec.Kind(), t.Name(); got != want {
		t.Fatalf("Spec makes a %s, and the kind's name is %s", got, want)
	}
	record := t.copy(h)
	t.Cleanup(func() {
		t.Kind.Release(context.Background(), []hold.Hold{h})
		t.Kind.Release(context.Background(), []hold.Hold{record})
	})
	return h
}

// Name returns the kind's name, not the test's.
func (t try) Name() string { return t.Kind.Name() }

// copy returns h as a ledger would return it.
func (t try) copy(h hold.Hold) hold.Hold {
	t.Helper()
	raw, err := json.Marshal(hold.Owner{ID: h.Owner, Holds: []hold.Hold{h}})
	if err != nil {
		t.Fatalf("encoding %s: %v", h, err)
	}
	o, err := hold.Kinds{t.Kind.Kind}.Decode(raw)
	if err != nil {
		t.Fatalf("decoding %s: %v", h, err)
	}
	return o.Holds[0]
}

func (t try) take(h hold.Hold) {
	t.Helper()
	if err := t.Acquire(t.Context(), h); err != nil {
		t.Fatalf("taking %s: %v", h, err)
	}
	if t.Settle == nil {
		return
	}
	for range 2 { // the second time there is nothing to wait for
		if err := t.Settle(t.Context(), h); err != nil {
			t.Fatalf("settling %s: %v", h, err)
		}
	}
}

// release gives holds back in batches that the kind accepts, and fails if Release returns an error for
// one of them.
func (t try) release(hs ...hold.Hold) {
	t.Helper()
	for i, err := range t.releaseErrs(hs...) {
		if err != nil {
			t.Fatalf("releasing %s: %v", hs[i], err)
		}
	}
}

func (t try) releaseErrs(hs ...hold.Hold) []error {
	t.Helper()
	var all []error
	for size := max(1, t.Batch); len(hs) > 0; {
		n := min(size, len(hs))
		errs := t.Kind.Release(t.Context(), hs[:n])
		if len(errs) != n {
			t.Fatalf("Release answers %d times to %d holds", len(errs), n)
		}
		all, hs = append(all, errs...), hs[n:]
	}
	return all
}

// verify fails unless Verify's answer about each hold wraps the error in want, or is nil
// where want is nil. If the kind is Unseen, all answers have to be nil, whatever want says.
func (t try) verify(hs []hold.Hold, want ...error) {
	t.Helper()
	got := t.Verify(t.Context(), nil, hs)
	if len(got) != len(hs) {
		t.Fatalf("Verify answers %d times to %d holds", len(got), len(hs))
	}
	if t.Unseen {
		want = make([]error, len(hs))
	}
	for i, err := range got {
		if !errors.Is(err, want[i]) {
			t.Fatalf("Verify says %v of %s (number %d of %d), not %v", err, hs[i], i+1, len(hs), want[i])
		}
	}
}

// look takes a snapshot. unchanged fails if a later snapshot differs from it.
func (t try) look() (unchanged func(after string)) {
	if t.Snapshot == nil {
		return func(string) {}
	}
	before := t.Snapshot()
	return func(after string) {
		t.Helper()
		if diff := cmp.Diff(strings.Split(before, "\n"), strings.Split(t.Snapshot(), "\n")); diff != "" {
			t.Fatalf("%s changed (-before +now):\n%s", after, diff)
		}
	}
}

// same reports whether two specs are equal in all fields.
func same(a, b hold.Spec) bool { return reflect.DeepEqual(a, b) }

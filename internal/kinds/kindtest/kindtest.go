// Package kindtest has the test that every kind must pass: that its holds can
// be taken and given back any number of times, in any company, and that nobody
// else's are touched.
//
//	kindtest.Run(t, kindtest.Kind{
//		Kind: link.New(...),
//		Spec: func(t testing.TB, owner hold.ID) hold.Spec {
//			return &link.Spec{Name: ..., Netns: nettest.Pod(t).Ref(), ...}
//		},
//		Example:  &link.Spec{...},
//		Snapshot: func() string { return nettest.Snapshot(t, nil).String() },
//		Foreign: func(t testing.TB, h hold.Hold) func() error {
//			... // make a link of that name, and another's
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

	// Spec makes what owner takes: in a place of its own, not taken yet. With
	// Alone, places may be one and the same.
	Spec func(t testing.TB, owner hold.ID) hold.Spec
	// Alone says that one owner at a time can have a hold of this kind, such
	// as an agent's only table: another's Acquire is then hold.ErrForeign.
	Alone bool
	// Unseen says that Verify cannot see whether a hold is there, and is
	// always content: there is nothing to take, only something to leave behind.
	Unseen bool
	// Fake says that this is a stand-in for a real kind, with its specs, whose
	// own test has the golden file: no Example is needed.
	Fake bool
	// Example has a value other than zero in each of its fields. As JSON, it
	// is compared with testdata/<kind>.json (go test -update writes that).
	Example hold.Spec
	// Snapshot describes what holds of this kind can leave behind, which is
	// then compared. Optional.
	Snapshot func() string
	// Foreign puts somebody else's thing where h would go, and returns what
	// tells whether it is still there, unchanged. Optional.
	Foreign func(t testing.TB, h hold.Hold) (intact func() error)
	// Disguise does to h's thing, which is there, what another program might:
	// gives it another name, so that it is not where one would look. Optional.
	Disguise func(t testing.TB, h hold.Hold)
	// End lets h's thing, which is there, come to its end by itself. A kind that
	// Ends has it.
	End func(t testing.TB, h hold.Hold)
	// Lose takes h's thing, which is there, away. A kind that Waits, and does not
	// end, has it.
	Lose func(t testing.TB, h hold.Hold)
	// Throttle lets what the kind asks say that it was asked too often, until a
	// time, or until over is called. Optional.
	Throttle func(t testing.TB) (until time.Time, over func())
	// Hang lets what the kind asks not answer until answer is called. A kind that
	// has a Try or a Look has it.
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

// checks are named after what is done.
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

// fresh returns a hold of a new owner. It is released at the end of the test,
// so that a check that fails does not fail the next.
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

// Name is the kind's, not the test's.
func (t try) Name() string { return t.Kind.Name() }

// copy returns h as a ledger gives it back.
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
	for range 2 { // once more: nothing is to be waited for
		if err := t.Settle(t.Context(), h); err != nil {
			t.Fatalf("settling %s: %v", h, err)
		}
	}
}

// release gives holds back in batches that the kind accepts, and says what
// each answer was.
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

// verify compares what Verify says of each hold with want: nil, or
// hold.ErrGone, or another error that must be in it. Of an unseen hold it says
// nil, whatever is wanted.
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

// look takes a snapshot; what returns afterwards must find it unchanged.
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

// same reports whether two specs say the same.
func same(a, b hold.Spec) bool { return reflect.DeepEqual(a, b) }

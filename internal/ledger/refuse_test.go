package ledger

import (
	"encoding/json"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/berth-net/berth/internal/hold"
)

var errChange = errors.New("change says no")

// TestRefuse commits each case's ops to the same ledger, together with an op that would
// succeed alone. All of them must be refused, and nothing may change.
func TestRefuse(t *testing.T) {
	c := newClock()
	l := open(t, testOptions(filepath.Join(t.TempDir(), "ledger.db"), c))
	past := c.now.Add(-time.Hour)

	parent, dying := newOwner(address("p/1"), hold.Name{Space: "port", Name: "80"}), newOwner()
	kid, gone, goneDue := newOwner(), newOwner(address("p/2")), newOwner(address("p/3"))
	kid.Needs = []hold.ID{parent.ID}
	mustCommit(t, l, Begin(parent), Begin(dying), Begin(kid), Begin(gone), Begin(goneDue))
	mustCommit(t, l, Releasing(dying.ID, c.now), Forget(gone.ID, c.now), Forget(goneDue.ID, past),
		Bury(Tombstone{Key: "k", Boot: "b", Started: 100, Until: c.Boottime() + 1}))
	fine, twice := newOwner(address("p/fine")), newOwner()

	with := func(edit func(*hold.Owner)) hold.Owner {
		o := newOwner()
		edit(&o)
		return o
	}
	known := func(id hold.ID, edit func(*hold.Owner)) hold.Owner {
		o, _ := l.Owner(id)
		edit(&o)
		return o
	}
	earlier := func(o *hold.Owner) { o.Meta = json.RawMessage(`{"network":"earlier"}`) }
	same := func(*hold.Owner) {}
	change := func(edit func(*hold.Owner)) Op {
		return Update(parent.ID, func(o *hold.Owner) error { edit(o); return nil })
	}
	begin := func(edit func(*hold.Owner)) []Op { return []Op{Begin(with(edit))} }
	tests := []struct {
		name string
		ops  []Op
		want error  // by errors.Is
		text string // part of the error
	}{
		{"begin an ID that is no ID", begin(func(o *hold.Owner) { o.ID = "x" }), ErrInvalid, "want 10 characters"},
		{"begin with a need that is no ID", begin(func(o *hold.Owner) { o.Needs = []hold.ID{"UPPERCASE1"} }), ErrInvalid, "needs"},
		{"begin with a need twice", begin(func(o *hold.Owner) { o.Needs = []hold.ID{parent.ID, parent.ID} }), ErrInvalid, "twice"},
		{"begin again", []Op{Begin(parent)}, ErrExists, string(parent.ID)},
		{"begin twice in a commit", []Op{Begin(twice), Begin(twice)}, ErrExists, ""},
		{"begin without a name", begin(func(o *hold.Owner) { o.Names = []hold.Name{{Space: "address"}} }), ErrInvalid, "name"},
		{"begin without a space", begin(func(o *hold.Owner) { o.Names = []hold.Name{{Name: "x"}} }), ErrInvalid, "name"},
		{"begin with a zero in a space", begin(func(o *hold.Owner) { o.Names = []hold.Name{{Space: "a\x00b", Name: "x"}} }), ErrInvalid, "name"},
		{"begin with a name that JSON changes", begin(func(o *hold.Owner) { o.Names = []hold.Name{address("\xff")} }), ErrInvalid, "name"},
		{"begin with a name too long", begin(func(o *hold.Owner) { o.Names = []hold.Name{address(strings.Repeat("n", MaxName))} }), ErrInvalid, "bytes"},
		{"begin with a name twice", begin(func(o *hold.Owner) { o.Names = []hold.Name{address("a"), address("b"), address("a")} }), ErrInvalid, "twice"},
		{"begin with a hold without a spec", begin(func(o *hold.Owner) { o.Holds = []hold.Hold{{}} }), ErrInvalid, "no spec"},
		{"begin with meta that is no JSON", begin(func(o *hold.Owner) { o.Meta = json.RawMessage(`{`) }), ErrInvalid, "meta"},
		{"begin with too much", begin(func(o *hold.Owner) { o.Meta = json.RawMessage(`"` + strings.Repeat("m", MaxOwner) + `"`) }), ErrInvalid, "at most"},
		{"begin with a taken name", begin(func(o *hold.Owner) { o.Names = []hold.Name{address("new"), address("p/1")} }),
			&NameTakenError{Name: address("p/1"), Owner: parent.ID}, "taken by owner " + string(parent.ID)},
		{"begin with a resting name", begin(func(o *hold.Owner) { o.Names = []hold.Name{address("p/2")} }),
			&NameTakenError{Name: address("p/2"), Until: c.now.Add(rest)}, "rests until"},
		{"begin with a name of the same commit", []Op{
			Begin(with(func(o *hold.Owner) { o.Names = []hold.Name{address("s")} })),
			Begin(with(func(o *hold.Owner) { o.Names = []hold.Name{address("s")} })),
		}, nil, "taken by owner"},
		{"begin with a name that the commit lets rest", []Op{Forget(kid.ID, c.now), Forget(parent.ID, c.now),
			Begin(with(func(o *hold.Owner) { o.Names = []hold.Name{address("p/1")} }))}, nil, "rests until"},
		{"begin with an unknown need", begin(func(o *hold.Owner) { o.Needs = []hold.ID{parent.ID, gone.ID} }), ErrNeeds, "unknown"},
		{"begin with a releasing need", begin(func(o *hold.Owner) { o.Needs = []hold.ID{parent.ID, dying.ID} }), ErrNeeds, "releasing"},
		{"begin with a need released in the commit", []Op{Releasing(parent.ID, c.now),
			Begin(with(func(o *hold.Owner) { o.Needs = []hold.ID{parent.ID} }))}, ErrNeeds, "releasing"},
		{"update an unknown owner", []Op{Update(gone.ID, func(*hold.Owner) error { return nil })}, ErrUnknown, string(gone.ID)},
		{"update with an error", []Op{Update(kid.ID, func(*hold.Owner) error { return errChange })}, errChange, string(kid.ID)},
		{"update to another ID", []Op{change(func(o *hold.Owner) { o.ID = gone.ID })}, ErrInvalid, "cannot be changed"},
		{"update to a releasing need", []Op{change(func(o *hold.Owner) { o.Needs = []hold.ID{dying.ID} })}, ErrNeeds, "releasing"},
		{"update to a circle", []Op{change(func(o *hold.Owner) { o.Needs = []hold.ID{kid.ID} })}, ErrInvalid, "needs it"},
		{"update to a circle of one", []Op{change(func(o *hold.Owner) { o.Needs = []hold.ID{o.ID} })}, ErrInvalid, "needs it"},
		{"pass a name of an unknown owner", []Op{Pass(gone.ID, parent.ID, address("p/2"))}, ErrUnknown, string(gone.ID)},
		{"pass a name to an unknown owner", []Op{Pass(parent.ID, gone.ID, address("p/1"))}, ErrUnknown, string(gone.ID)},
		{"pass a name that is another's", []Op{Pass(kid.ID, dying.ID, address("p/1"))}, ErrInvalid, "does not have"},
		{"pass a name to its owner", []Op{Pass(parent.ID, parent.ID, address("p/1"))}, ErrInvalid, "itself"},
		{"update to a resting name", []Op{change(func(o *hold.Owner) { o.Names = append(o.Names, address("p/2")) })}, nil, "rests until"},
		{"update to a name twice", []Op{change(func(o *hold.Owner) { o.Names = append(o.Names, o.Names[0]) })}, ErrInvalid, "twice"},
		{"an owner that has changed", []Op{Unchanged(known(parent.ID, earlier))}, ErrChanged, string(parent.ID)},
		{"an owner that the commit changes", []Op{change(earlier), Unchanged(known(parent.ID, same))}, ErrChanged, string(parent.ID)},
		{"release an unknown owner", []Op{Releasing(gone.ID, c.now)}, ErrUnknown, string(gone.ID)},
		{"release at no time", []Op{Releasing(parent.ID, time.Time{})}, ErrInvalid, "no time"},
		{"forget one that is needed", []Op{Forget(parent.ID, c.now)}, ErrNeeded, "1"},
		{"forget at no time", []Op{Forget(kid.ID, time.Time{})}, ErrInvalid, "no time"},
		{"bury without a key", []Op{Bury(Tombstone{})}, ErrInvalid, "key"},
		{"bury with a key too long", []Op{Bury(Tombstone{Key: strings.Repeat("k", MaxName+1)})}, ErrInvalid, "key"},
		{"what began before the tombstone", []Op{Unburied("k", "b", 99)}, ErrBuried, "k"},
		{"what began with the tombstone", []Op{Unburied("k", "b", 100)}, ErrBuried, "k"},
		{"what began before a tombstone of the commit", []Op{Bury(Tombstone{Key: "k", Boot: "b", Started: 102}), Unburied("k", "b", 101)}, ErrBuried, "k"},
	}
	before := contentOf(l)
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			err := l.Commit(t.Context(), append([]Op{Begin(fine)}, test.ops...)...)
			if err == nil {
				t.Fatal("was not refused")
			}
			var taken, want *NameTakenError
			if errors.As(test.want, &want) {
				if !errors.As(err, &taken) || *taken != *want {
					t.Errorf("error is %v, want %v", err, want)
				}
			} else if test.want != nil && !errors.Is(err, test.want) {
				t.Errorf("error is %v, want %v", err, test.want)
			}
			if !strings.Contains(err.Error(), test.text) {
				t.Errorf("error %q does not say %q", err, test.text)
			}
			sameContent(t, contentOf(l), before)
		})
	}

	// On the same ledger, these are not refused.
	mustCommit(t, l, Begin(fine), Forget(gone.ID, c.now), Releasing(dying.ID, c.now.Add(time.Hour)),
		Unchanged(known(parent.ID, same)), Unchanged(known(dying.ID, earlier)), Unchanged(gone), // Unchanged compares only owners that are wanted
		Unburied("k", "b", 101), Unburied("k", "other boot", 99), Unburied("unknown", "b", 1),
		Begin(with(func(o *hold.Owner) { o.Names = []hold.Name{address("p/3")} })),
		change(func(o *hold.Owner) { o.Names = o.Names[:1] }), Unchanged(known(parent.ID, same)),
		Update(dying.ID, func(o *hold.Owner) error { o.Releasing = time.Time{}; return nil }),
		Begin(with(func(o *hold.Owner) { o.Names = []hold.Name{{Space: "port", Name: "80"}} })),
		Forget(kid.ID, c.now), Forget(parent.ID, c.now))
	if o, _ := l.Owner(dying.ID); !o.Releasing.Equal(c.now) {
		t.Errorf("releasing since %v, want the first time, %v", o.Releasing, c.now)
	}
	if needers := l.Needers(parent.ID); len(needers) != 0 {
		t.Errorf("needed by %v", needers)
	}
}

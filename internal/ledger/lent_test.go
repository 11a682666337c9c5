package ledger

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/berth-net/berth/internal/hold"
)

// loan is a spec with a name that somebody lends.
type loan struct {
	Of hold.Name `json:"of"`
}

func (*loan) Kind() string         { return "loan" }
func (l *loan) String() string     { return "loan of " + l.Of.String() }
func (l *loan) Names() []hold.Name { return []hold.Name{l.Of} }
func (*loan) Lent()                {}

// A name that somebody has lent to an owner is free as soon as the owner has it no more, and a name of the owner's own rests, however the owner
// loses them, also when another run of the program forgets it.
func TestLentNamesDoNotRest(t *testing.T) {
	kinds := hold.Kinds{{New: func() hold.Spec { return new(loan) }, Discovers: true}}
	lent, own := address("10.9.0.2"), address("10.88.0.2")
	for what, lose := range map[string]func(hold.ID) Op{
		"forgotten": func(id hold.ID) Op { return Forget(id, time.Now()) },
		"freed":     func(id hold.ID) Op { return Update(id, func(o *hold.Owner) error { o.Names = nil; return nil }) },
	} {
		t.Run(what, func(t *testing.T) {
			opts := Options{Path: filepath.Join(t.TempDir(), "ledger.db"), Rest: restAddresses, Kinds: kinds}
			l, err := Open(opts)
			must(t, err)
			o := newOwner(lent, own)
			o.Holds = []hold.Hold{{Owner: o.ID, Spec: &loan{lent}}}
			must(t, l.Commit(t.Context(), Begin(o)))
			l.Close()
			l = open(t, opts)
			must(t, l.Commit(t.Context(), lose(o.ID)))
			if err := l.Commit(t.Context(), Begin(newOwner(lent))); err != nil {
				t.Errorf("the lent name: %v", err)
			}
			if err := l.Commit(t.Context(), Begin(newOwner(own))); err == nil {
				t.Error("the owner's own name does not rest")
			}
		})
	}
}

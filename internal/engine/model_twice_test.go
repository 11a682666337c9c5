package engine_test

import (
	"errors"
	"math/rand/v2"
	"slices"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/ledger"
)

// Now and then a lease is given a name that another owner has. The engine must refuse the Take of
// the lease's owner, and the other owner keeps the name.

// anothers returns a name that an owner which stands has discovered, or "".
func (r *modelRun) anothers() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, o := range r.standing {
		rec, _ := r.ledger.Owner(o.ID)
		if names := rec.NamesIn("found"); len(names) > 0 {
			return names[rand.IntN(len(names))]
		}
	}
	return ""
}

// twice returns the names that an owner's leases were given although another owner had these names.
func twice(o hold.Owner) []hold.Name {
	var names []hold.Name
	for _, h := range o.Holds {
		if t := h.Spec.(*thing); t.Twice {
			names = append(names, hold.Name{Space: "found", Name: t.Offers})
		}
	}
	return names
}

// wantOwn checks that an owner that was taken has the names that its leases were given: the
// owners that had these names have gone meanwhile.
func (r *modelRun) wantOwn(o hold.Owner) {
	for _, name := range twice(o) {
		if has := r.holder(name); has != o.ID {
			r.t.Errorf("%s is taken with %s, which is %q's", o, name, has)
		}
	}
}

// isTwice reports whether an error says that a lease was given another owner's name: of all
// that can go wrong with an owner which an earlier life was taking, this is the only thing that
// neither a sweep nor a restart can put right.
func (r *modelRun) isTwice(err error) bool {
	if all, ok := err.(interface{ Unwrap() []error }); ok {
		return !slices.ContainsFunc(all.Unwrap(), func(err error) bool { return !r.isTwice(err) })
	}
	var taken *ledger.NameTakenError
	return errors.As(err, &taken) && taken.Name.Space == "found"
}

func (r *modelRun) count(n *int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	*n++
}

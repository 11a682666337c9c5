package hold

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// What Verify and Acquire say of a hold. They are wrapped with what was seen.
var (
	ErrGone     = errors.New("gone")                     // Verify: it is not there
	ErrChanged  = errors.New("changed")                  // Verify: it is there, not as its spec says
	ErrForeign  = errors.New("taken by somebody else")   // Acquire: its place is another's, which is left alone
	ErrHomeless = errors.New("what it lived in is gone") // Acquire: cannot succeed any more: the pod is gone
)

// LaterError is the answer of an Acquire or a Release that must not be tried again
// before a time, such as that of an API which says that it was asked too often. It
// holds for the kind as a whole: nothing else of it is acquired or released before.
type LaterError struct {
	At  time.Time
	Err error // why
}

func (e *LaterError) Error() string {
	return fmt.Sprintf("not before %s: %v", e.At.UTC().Format(time.RFC3339), e.Err)
}

func (e *LaterError) Unwrap() error { return e.Err }

// Stage says when a kind's holds are released, and what they mean to names.
type Stage int

const (
	// Reserve makes something reusable: a cloud association, a delegated
	// address. Released strictly in reverse of acquisition, once no Use hold
	// of the owner is left and nobody needs it.
	Reserve Stage = iota
	// Use carries names: a link, a rule. Every one is tried on release,
	// whatever fails beside it; in which order says Owner.Ordered.
	Use
	// Tell informs others. It cannot fail Take, and keeps no name on release:
	// its failure is owed by itself.
	Tell
)

func (s Stage) String() string { return [...]string{"reserve", "use", "tell"}[s] }

// Kind takes, checks, cuts off and gives back one sort of hold. All of its
// functions may be called at once for different holds, and again after a kill
// at any instruction of an earlier call. They return soon after their context
// ends.
type Kind struct {
	Stage Stage
	// New returns a pointer to an empty spec, for the ledger to decode into.
	New func() Spec
	// Acquire takes the hold. "So already, and ours" is success; what stands
	// in its place but is another's is ErrForeign, and never replaced.
	Acquire func(context.Context, Hold) error
	// Discovers says that Acquire fills in its spec, also if it fails. That is
	// committed before the owner's next hold is acquired, with the names that the spec
	// says then (Namer): the owner has them from that commit on. Where somebody else has
	// one of them, the hold is refused, and the ledger keeps what else was discovered.
	// Release has to do with a spec that lacks it: the program may end before the commit.
	Discovers bool
	// Settle waits until what Acquire took can be used. Take alone calls it, under
	// the context of whoever asked: a repair does not wait for a pod. Where nothing
	// is to be waited for it costs nothing. Optional.
	Settle func(context.Context, Hold) error
	// Verify compares holds with the world: nil, ErrGone or ErrChanged (both
	// wrapped with what differs), or why it could not be seen. One answer a
	// hold, in their order.
	Verify func(context.Context, *Look, []Hold) []error
	// Release gives holds back. "Not there" is success; another owner's is
	// never touched. One answer a hold, in their order.
	Release func(context.Context, []Hold) []error
	// Batch is how many holds one Release takes: of any owners, if above 1;
	// else one, serial in an owner and owners in parallel.
	Batch int
	// Flight is how many Release calls of the kind run at once, at most, whoever asks and
	// however long they take; 0 is one.
	Flight int
	// Try limits one Release, and Look one Verify and one Find; 0 is what the engine's
	// options say.
	Try, Look time.Duration
	// Yield is how many holds one Release takes while owners are being taken,
	// who need the same locks; it is below Batch. Then one runs at a time, after
	// a pause, unless somebody waits or too much does. 0: the kind does not yield.
	Yield int
	// Lazy says that a Release costs as much for few holds as for many, and
	// that nobody suffers from its delay. The engine lets a moment pass before
	// each, and nine times as long as the last one took, unless somebody waits.
	Lazy bool
	// Cut makes the hold's owner unreachable at once, cheaply. Optional.
	Cut func(context.Context, Hold) error
	// Sever is the cut's second leg: it makes cuts of holds stand by themselves,
	// without a table, or anything else, that somebody could take away. It may cost
	// more than Cut: it runs behind the answer to a DEL, for holds that have to wait
	// in their line. "Not there" is success. It goes on past a hold that fails, and
	// returns all that went wrong. Optional.
	Sever func(context.Context, []Hold) error
	// Ends says that such a thing comes to an end by itself, as a process does: one of
	// which Verify says ErrGone is not taken again, and no difference. Who listens to
	// the engine's events is told, once in each life of the engine.
	Ends bool
	// Waits says that an owner of such a hold is released after those who need it,
	// whenever they go: until then the hold stands, and is mended. Where no kind of an
	// owner says so, its release takes those who need it with it.
	Waits bool
	// Find returns everything in the world with this agent's stamp, as holds
	// that Release can take. What it saw may serve a Verify in the same look. Optional.
	Find func(context.Context, *Look) ([]Hold, error)
}

// Name returns the name of the kind, as its specs say it.
func (k Kind) Name() string { return k.New().Kind() }

// Kinds is an agent's ordered list of kinds.
type Kinds []Kind

// Get returns the kind of that name.
func (ks Kinds) Get(name string) (Kind, bool) {
	for _, k := range ks {
		if k.Name() == name {
			return k, true
		}
	}
	return Kind{}, false
}

// Decode reads an owner as a ledger record holds it. Specs of kinds that are
// not in the list stay *Unknown. The one parent that earlier versions wrote is an
// owner that this one needs.
func (ks Kinds) Decode(raw []byte) (Owner, error) {
	var record struct {
		Owner
		Parent ID `json:"parent"`
	}
	if err := json.Unmarshal(raw, &record); err != nil {
		return Owner{}, fmt.Errorf("decoding owner: %w", err)
	}
	o := record.Owner
	if record.Parent != "" {
		o.Needs = append(o.Needs, record.Parent)
	}
	for i := range o.Holds {
		h := &o.Holds[i]
		h.Owner = cmp.Or(h.From, o.ID)
		u := h.Spec.(*Unknown)
		k, ok := ks.Get(u.Name)
		if !ok {
			continue
		}
		spec := k.New()
		if err := json.Unmarshal(u.Raw, spec); err != nil {
			return Owner{}, fmt.Errorf("decoding %s of owner %s: %w", u.Name, o.ID, err)
		}
		h.Spec = spec
	}
	return o, nil
}

// VerifyEach calls f for every hold by itself: the Verify of a kind that has nothing to
// gain from many at once, or from what it has seen.
func VerifyEach(f func(context.Context, Hold) error) func(context.Context, *Look, []Hold) []error {
	each := Each(f)
	return func(ctx context.Context, _ *Look, hs []Hold) []error { return each(ctx, hs) }
}

// Each calls f for every hold by itself: the Release of a kind that has nothing to gain
// from many at once.
func Each(f func(context.Context, Hold) error) func(context.Context, []Hold) []error {
	return func(ctx context.Context, hs []Hold) []error {
		errs := make([]error, len(hs))
		for i, h := range hs {
			errs[i] = f(ctx, h)
		}
		return errs
	}
}

package hold

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// The answers of Verify and Acquire about a hold. A kind wraps them with what it has seen.
var (
	ErrGone     = errors.New("gone")                              // Verify: the thing is not there
	ErrEnded    = fmt.Errorf("has ended, and is %w", ErrGone)     // Verify of a kind that Ends: the thing was there, and is not any more
	ErrChanged  = errors.New("changed")                           // Verify: the thing is there, but not as its spec says
	ErrHalfMade = fmt.Errorf("half-made, and has %w", ErrChanged) // Verify: no Acquire has completed the thing yet
	ErrForeign  = errors.New("taken by somebody else")            // Acquire: somebody else's thing is in its place, and stays there
	ErrUnused   = errors.New("nobody could have used it")         // Acquire of a kind with Cut: until it failed, the owner could not be reached by the hold
	ErrHomeless = errors.New("what it belongs in is gone")        // Acquire, Settle: it can never succeed again, because the pod is gone
	ErrGoing    = errors.New("its deletion may wait")             // Acquire: somebody has asked for the owner's release in a way that the ledger does not know of yet, or nobody can tell
)

// Unused returns an error that wraps err and ErrUnused, with the text of err.
func Unused(err error) error { return unusedError{err} }

type unusedError struct{ error }

func (e unusedError) Unwrap() []error { return []error{e.error, ErrUnused} }

// LaterError is the answer of an Acquire or a Release that must not be tried again before
// a time, for example because an API says that it was asked too often. The answer holds for the
// whole kind: the engine acquires and releases no hold of the kind before that time. At that time
// one call asks again, and the others wait for its answer.
type LaterError struct {
	At  time.Time
	Err error // why
}

func (e *LaterError) Error() string {
	return fmt.Sprintf("no new try before %s: %v", e.At.UTC().Format(time.RFC3339), e.Err)
}

func (e *LaterError) Unwrap() error { return e.Err }

// Stage says when a kind's holds are released, and whether they keep their owner's names.
type Stage int

const (
	// Reserve is for holds that reserve something for their owner, which others can have
	// afterwards: a cloud association, a delegated address. They are released strictly in
	// reverse of acquisition, once the owner has no Use hold left and no other owner
	// needs it.
	Reserve Stage = iota
	// Use is for holds that use names: a link, a rule. The release tries each of them,
	// also if others fail. Owner.Ordered says whether their order matters.
	Use
	// Tell is for holds that only inform others. If the acquisition of such a hold fails, Take does
	// not fail. If the release of such a hold fails, it is owed, but its owner's names are freed
	// all the same.
	Tell
)

func (s Stage) String() string { return [...]string{"reserve", "use", "tell"}[s] }

// Kind takes, checks, cuts off and gives back one sort of hold. All of its functions may be
// called at once for different holds. Each may be called again after the program was killed
// at any instruction of an earlier call. They return soon after their context ends.
type Kind struct {
	Stage Stage
	// New returns a pointer to an empty spec, for the ledger to decode into.
	New func() Spec
	// Acquire takes the hold. "So already, and ours" is success. If somebody else's
	// thing is in its place, Acquire never replaces that, and returns ErrForeign.
	Acquire func(context.Context, Hold) error
	// Discovers says that Acquire fills in its spec, also if it fails. The engine commits
	// the spec before it acquires the owner's next hold, together with the names that the
	// spec then says (Namer): the owner has these names from that commit on. If somebody
	// else has one of the names, the hold is refused, and its record stays as it was before
	// Acquire. Release must be able to work with a spec that lacks what was
	// discovered, because the program may end before the commit.
	Discovers bool
	// Beside says that Acquire needs nothing of the hold ahead of it in the owner's list: the engine
	// acquires both at once, and so makes the owner wait for the slower one only. It is of no effect
	// if either of the two kinds Discovers.
	Beside bool
	// Settle waits until what Acquire took can be used. The engine calls it under the
	// context of a caller who waits for that (Take, Change, Settle), and never in a
	// repair, which does not wait for a pod. If there is nothing to wait for, it costs
	// nothing. If the pod is gone, it returns ErrHomeless. Optional.
	Settle func(context.Context, Hold) error
	// Verify compares holds with the world. It returns one answer for each hold, in their
	// order: nil, ErrGone or ErrChanged (both wrapped with what differs), or another
	// error, which says why the hold could not be seen.
	Verify func(context.Context, *Look, []Hold) []error
	// Release gives holds back. "Not there" is success. Another owner's thing is never
	// touched. Release returns one answer for each hold, in their order.
	Release func(context.Context, []Hold) []error
	// Batch is how many holds one Release takes. If it is above 1, they may be of any
	// owners. Otherwise a Release takes one hold: an owner's holds go one after the
	// other, and different owners' holds go at once.
	Batch int
	// Flight limits how many Release calls of the kind run at once, for all callers together and
	// however long the calls take. 0 is one, or 32 for a kind that does not batch.
	Flight int
	// Try limits one Release and one Sever, and Look one Verify and one Find. 0 is what the
	// engine's options say. Neither limits Acquire, which ends with its caller's deadline, or
	// in a repair with the engine's Options.Mending, nor Cut, which the engine gives 5 s for
	// all of an owner's holds.
	Try, Look time.Duration
	// Yield is how many holds one Release takes while owners are being taken, because
	// Acquire needs the same locks. It is below Batch. Only one Release runs at a time
	// then, after a pause, which is left out if a caller waits for releases or if too
	// many holds wait. 0: the kind does not yield.
	Yield int
	// Lazy says that a Release costs as much for few holds as for many, and that its
	// delay harms nobody. Before each Release the engine waits for nine times as long as
	// the last one took, at least 50 ms and at most 1 s, unless a caller waits for
	// releases or too many holds wait.
	Lazy bool
	// Cut makes the hold's owner unreachable at once, cheaply. Optional.
	Cut func(context.Context, Hold) error
	// Sever is the cut's second leg: it makes the cuts of holds independent of a table, or
	// of anything else that somebody could take away. It may cost more than Cut, because
	// it runs after the answer to a DEL, for holds that have to wait in their line. "Not
	// there" is success. If it fails for one hold, Sever goes on with the others, and
	// returns all errors. Optional.
	Sever func(context.Context, []Hold) error
	// Ends says that a thing of this kind comes to an end by itself, as a process does. If Verify
	// says ErrEnded of it, the engine does not take it again, and does not count it as a
	// difference. The engine sends one event of each such end, and sends the event once more in
	// each later run of the program. Verify says ErrGone only of a thing that was never there: the
	// program may have ended before Acquire, and the engine then takes the thing. The engine also
	// calls Verify with the spec as it was before Acquire; so what shows Verify that the thing was
	// there has to outlive the thing, until Release.
	Ends bool
	// Waits says that the release of an owner of such a hold waits for the owners that
	// need it, whenever they go: until then the hold stands, and is mended. If no kind of
	// an owner says so, the owner's release takes the owners that need it with it.
	Waits bool
	// Keyed says that Release finds a thing by what a successor's thing may have, too, such as a container's id and an interface's
	// name, and not by its owner. So a released hold leaves its owner's record before a successor comes (engine.WaitKind): the next run of
	// the program, which does not know what is released already, would otherwise give back the successor's thing.
	Keyed bool
	// Find returns everything in the world that has this agent's stamp, as holds that
	// Release can take. A thing that does not say its owner has an empty Owner: the engine looks
	// for the thing's kind and text in the ledger. A Verify in the same look may use what Find has
	// seen. Optional.
	Find func(context.Context, *Look) ([]Hold, error)
}

// Name returns the kind's name, which is what its specs return as Kind.
func (k Kind) Name() string { return k.New().Kind() }

// Kinds is an agent's ordered list of kinds.
type Kinds []Kind

// Names returns the kinds' names, in their order.
func (ks Kinds) Names() []string {
	names := make([]string, len(ks))
	for i, k := range ks {
		names[i] = k.Name()
	}
	return names
}

// Get returns the kind of that name.
func (ks Kinds) Get(name string) (Kind, bool) {
	for _, k := range ks {
		if k.Name() == name {
			return k, true
		}
	}
	return Kind{}, false
}

// Decode reads an owner from a ledger record. Specs of kinds that are not in the list stay
// *Unknown. Earlier versions wrote one "parent" instead of "needs": Decode adds it to the
// owner's needs.
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

// VerifyEach makes a Verify that calls f for each hold. It is for a kind that gains nothing
// from a look at many holds at once, or from what was seen earlier in the same look.
func VerifyEach(f func(context.Context, Hold) error) func(context.Context, *Look, []Hold) []error {
	each := Each(f)
	return func(ctx context.Context, _ *Look, hs []Hold) []error { return each(ctx, hs) }
}

// Each makes a Release that calls f for each hold. It is for a kind that gains nothing from
// a release of many holds at once.
func Each(f func(context.Context, Hold) error) func(context.Context, []Hold) []error {
	return func(ctx context.Context, hs []Hold) []error {
		errs := make([]error, len(hs))
		for i, h := range hs {
			errs[i] = f(ctx, h)
		}
		return errs
	}
}

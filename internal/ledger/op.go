package ledger

import (
	"bytes"
	"fmt"
	"time"

	"github.com/berth-net/berth/internal/hold"
)

// Limits of what can be written.
const (
	MaxOwner = 256 << 10 // bytes of an owner's JSON
	MaxName  = 1024      // bytes of a name with its space, and of a tombstone's key

	usualOwner = 4096 // bytes that suffice for the JSON of most owners
)

// Op is one part of a commit: Begin, Update, Pass, Unchanged, Releasing, Forget,
// Bury, Unburied, Enter or Quarantined.
type Op interface {
	// ready does what needs no look at the ledger's state, in the caller's
	// goroutine.
	ready(*Ledger) (step, error)
}

// step is an op that is ready to be staged, in the writer's goroutine.
type step struct {
	pages int // about how many pages it makes the transaction write
	do    func(*batch) error
}

// Begin writes a new owner and claims its names. It is refused with ErrInvalid,
// ErrExists, ErrNeeds, ErrFull, or *NameTakenError for a name that is claimed
// or still rests; a rest that is due ends with the claim. The ledger keeps no
// part of o that the caller may still change, but shares the specs of kinds
// that do not discover. One that is releasing from the start may need who is
// releasing.
func Begin(o hold.Owner) Op { return begin{o} }

// Update lets change edit a copy of the owner, which then takes its place. It
// is refused with ErrUnknown, with change's error, as Begin for new names, and
// with ErrFull if it adds. Names that change leaves out are freed now. ID
// and Releasing cannot be changed; Needs can, but not into a circle. Change runs in the writer's
// goroutine: it must not wait, nor call the ledger; and it replaces specs
// rather than to write into them, unless their kind discovers.
func Update(id hold.ID, change func(*hold.Owner) error) Op { return update{id, change} }

// Pass moves names from one owner to another. They need no rest: nobody else can
// have them in between. It is refused with ErrUnknown, if it knows one of the owners
// not, and with ErrInvalid for a name that from does not have.
func Pass(from, to hold.ID, names ...hold.Name) Op { return pass{from, to, names} }

// Unchanged changes nothing, and refuses the commit with ErrChanged if the owner
// is wanted and has another Meta by now than o: for those who have decided by
// what they have read.
func Unchanged(o hold.Owner) Op { return unchanged{o} }

// Releasing marks the owner as releasing since at, by the wall clock. It is idempotent: the first
// time stays. ErrUnknown refuses it.
func Releasing(id hold.ID, at time.Time) Op { return releasing{id, at} }

// Forget drops the owner and frees its names, into a rest that counts from at, of
// Options.Clock, where Options.Rest says so. To forget what is unknown is nil; an owner that
// others need is refused with ErrNeeded.
func Forget(id hold.ID, at time.Time) Op { return forget{id, at} }

// Bury writes a tombstone. Of several with one key the one that started last
// is kept. ErrInvalid refuses an empty or overlong key.
func Bury(t Tombstone) Op { return bury{t} }

// Unburied changes nothing, and refuses the commit with ErrBuried if there is a
// tombstone of the key in that boot no earlier than started (CLOCK_BOOTTIME
// in nanoseconds): a deletion that came after this request had begun.
func Unburied(key, boot string, started int64) Op { return unburied{key, boot, started} }

// Enter sets the epoch. With a new one, tombstones of other boots end.
func Enter(e Epoch) Op { return setEpoch{e} }

// Founded says that the ledger is the first one of its state folder, and when its agent
// began.
func Founded(f First) Op { return founded{f} }

// Quarantined sets the ledger's quarantine, in times of Options.Clock, to be seen
// by Ledger.Quarantine.
// ErrInvalid refuses one that ends before it begins.
func Quarantined(since, until time.Time) Op { return quarantine{since, until} }

type begin struct{ owner hold.Owner }

func (op begin) ready(l *Ledger) (step, error) {
	e, err := l.seal(op.owner)
	if err != nil {
		return step{}, fmt.Errorf("beginning owner %s: %w", op.owner.ID, err)
	}
	return step{pagesFor(e.size), func(b *batch) error {
		if err := b.begin(e); err != nil {
			return fmt.Errorf("beginning owner %s: %w", e.owner.ID, err)
		}
		return nil
	}}, nil
}

type update struct {
	id     hold.ID
	change func(*hold.Owner) error
}

func (op update) ready(*Ledger) (step, error) {
	return step{3, func(b *batch) error {
		if err := b.update(op.id, op.change); err != nil {
			return fmt.Errorf("updating owner %s: %w", op.id, err)
		}
		return nil
	}}, nil
}

type pass struct {
	from, to hold.ID
	names    []hold.Name
}

func (op pass) ready(*Ledger) (step, error) {
	return step{4, func(b *batch) error {
		if err := b.pass(op.from, op.to, op.names); err != nil {
			return fmt.Errorf("passing names from owner %s to %s: %w", op.from, op.to, err)
		}
		return nil
	}}, nil
}

type unchanged struct{ owner hold.Owner }

func (op unchanged) ready(*Ledger) (step, error) {
	return step{0, func(b *batch) error {
		if e, ok := b.owners.get(op.owner.ID); ok && e.owner.Wanted() && !bytes.Equal(e.owner.Meta, op.owner.Meta) {
			return fmt.Errorf("owner %s: %w", op.owner.ID, ErrChanged)
		}
		return nil
	}}, nil
}

type releasing struct {
	id hold.ID
	at time.Time
}

func (op releasing) ready(*Ledger) (step, error) {
	if op.at.IsZero() {
		return step{}, fmt.Errorf("releasing owner %s: %w: no time", op.id, ErrInvalid)
	}
	return step{1, func(b *batch) error {
		if err := b.releasing(op.id, plain(op.at)); err != nil {
			return fmt.Errorf("releasing owner %s: %w", op.id, err)
		}
		return nil
	}}, nil
}

type forget struct {
	id hold.ID
	at time.Time
}

func (op forget) ready(*Ledger) (step, error) {
	if op.at.IsZero() {
		return step{}, fmt.Errorf("forgetting owner %s: %w: no time", op.id, ErrInvalid)
	}
	return step{3, func(b *batch) error {
		if err := b.forget(op.id, plain(op.at)); err != nil {
			return fmt.Errorf("forgetting owner %s: %w", op.id, err)
		}
		return nil
	}}, nil
}

type bury struct{ tomb Tombstone }

func (op bury) ready(*Ledger) (step, error) {
	if n := len(op.tomb.Key); n == 0 || n > MaxName {
		return step{}, fmt.Errorf("burying %.40q: %w: key of %d bytes, want 1 to %d", op.tomb.Key, ErrInvalid, n, MaxName)
	}
	return step{1, func(b *batch) error { b.bury(op.tomb); return nil }}, nil
}

type unburied struct {
	key, boot string
	started   int64
}

func (op unburied) ready(*Ledger) (step, error) {
	return step{0, func(b *batch) error {
		if err := b.unburied(op.key, op.boot, op.started); err != nil {
			return fmt.Errorf("%s: %w", op.key, err)
		}
		return nil
	}}, nil
}

// spare is what Writable commits: nothing, if there is room for an owner.
type spare struct{}

func (spare) ready(*Ledger) (step, error) {
	return step{0, func(b *batch) error { return b.take(usualOwner) }}, nil
}

type setEpoch struct{ epoch Epoch }

func (op setEpoch) ready(*Ledger) (step, error) {
	return step{1, func(b *batch) error { b.epoch = op.epoch; return nil }}, nil
}

type founded struct{ first First }

func (op founded) ready(*Ledger) (step, error) {
	return step{1, func(b *batch) error { b.first = &op.first; return nil }}, nil
}

type quarantine struct{ since, until time.Time }

func (op quarantine) ready(*Ledger) (step, error) {
	if op.since.IsZero() || op.until.Before(op.since) {
		return step{}, fmt.Errorf("quarantine from %s to %s: %w", op.since, op.until, ErrInvalid)
	}
	return step{1, func(b *batch) error {
		b.quarantine = Quarantine{plain(op.since), plain(op.until)}
		return nil
	}}, nil
}

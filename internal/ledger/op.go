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

	usualOwner = 4096 // bytes that are enough for the JSON of most owners
	usualExit  = 8    // sectors that are enough for the deletion of most owners
)

// Op is one part of a commit: Begin, Update, Pass, Unchanged, Releasing, ReleasingAfter, Forget,
// ForgetUnused, Bury, Unburied, Room, Enter, Founded or Quarantined.
type Op interface {
	// ready does, in the caller's goroutine, what needs nothing of the ledger's state.
	ready(*Ledger) (step, error)
}

// step is an op that is ready to be staged, in the writer's goroutine.
type step struct {
	bytes int // about how many bytes the transaction has to write for the step
	do    func(*batch) error
}

// Begin writes a new owner and claims its names. It fails with ErrInvalid, ErrExists,
// ErrNeeds or ErrFull, or with *NameTakenError for a name that another owner has or that
// still rests. If the rest of a name is over, the claim drops the rest. The ledger keeps no part of
// o that the caller may still change, except the specs of kinds that do not discover. Only an owner
// that is releasing from the start may need owners that are releasing.
func Begin(o hold.Owner) Op { return begin{o} }

// Update lets change edit a copy of the owner, which then replaces the owner. It fails with
// ErrUnknown, with change's error, for new names as Begin does, and on a full disk with
// ErrFull: at once if the owner's record grows, and else after many updates. Names that change
// leaves out are freed now. change cannot change ID and Releasing; it can change Needs, but not
// into a circle. change runs in the writer's goroutine: it must neither wait nor call the
// ledger. It must replace specs and not write into them, unless their kind discovers.
func Update(id hold.ID, change func(*hold.Owner) error) Op { return update{id, change} }

// Pass moves names from one owner to another. The names need no rest, because nobody else
// can have them in between. Pass fails with ErrUnknown for an unknown owner, with ErrInvalid
// for a name that from does not have, and with ErrFull as Update does.
func Pass(from, to hold.ID, names ...hold.Name) Op { return pass{from, to, names} }

// Unchanged changes nothing. It fails with ErrChanged, and so refuses the commit, if the
// owner is wanted and its Meta now differs from o's. It is for callers that have decided
// something by what they had read.
func Unchanged(o hold.Owner) Op { return unchanged{o} }

// Releasing marks the owner as releasing since at, by the wall clock. If the owner is
// releasing already, the first time stays. Releasing fails with ErrUnknown.
func Releasing(id hold.ID, at time.Time) Op { return releasing{id: id, at: at} }

// ReleasingAfter is Releasing, and writes what somebody else did for the release earlier. Times of
// `earlier` that are zero are not written.
func ReleasingAfter(id hold.ID, at time.Time, earlier hold.Earlier) Op {
	return releasing{id, at, earlier}
}

// Forget drops the owner and frees its names. If Options.Rest gives a name a rest, the rest begins
// at `at`, a time of Options.Clock. A name that somebody else has lent to the owner (hold.Lent) does not rest. Forgetting an unknown owner succeeds. Forget fails with
// ErrNeeded for an owner that others need.
func Forget(id hold.ID, at time.Time) Op { return forget{id: id, at: at} }

// ForgetUnused is Forget for an owner whose names nobody can have used since they were claimed:
// they do not rest.
func ForgetUnused(id hold.ID) Op { return forget{id: id, unused: true} }

// Bury writes a tombstone. If the key has a tombstone of the same boot, the later Started and the
// later Until count. Bury replaces a tombstone of another boot. Bury fails with ErrInvalid for an
// empty or overlong key. On a full disk it fails with ErrFull after many tombstones, unless the
// commit releases an owner as well.
func Bury(t Tombstone) Op { return bury{t} }

// Unburied changes nothing. It fails with ErrBuried, and so refuses the commit, if the key
// has a tombstone of the boot `boot` whose Started is `started` or later (CLOCK_BOOTTIME in
// nanoseconds): a deletion that came after this request had begun.
func Unburied(key, boot string, started int64) Op { return unburied{key, boot, started} }

// Room changes nothing. It fails with ErrFull, and so refuses the commit, if the disk has no
// room for another owner.
func Room() Op { return fits{} }

// Enter sets the epoch. A new epoch ends tombstones of other boots.
func Enter(e Epoch) Op { return setEpoch{e} }

// Founded says that the ledger is the first one of its state folder, and when its agent
// began.
func Founded(f First) Op { return founded{f} }

// Quarantined sets the ledger's quarantine, which Ledger.Quarantine returns, in times of
// Options.Clock. It fails with ErrInvalid for a quarantine that ends before it begins.
func Quarantined(since, until time.Time) Op { return quarantine{since, until} }

type begin struct{ owner hold.Owner }

func (op begin) ready(l *Ledger) (step, error) {
	e, err := l.seal(op.owner)
	if err != nil {
		return step{}, fmt.Errorf("beginning owner %s: %w", op.owner.ID, err)
	}
	return step{bytesFor(e.size), func(b *batch) error {
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
	return step{bytesFor(usualOwner), func(b *batch) error {
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
	return step{2 * bytesFor(usualOwner), func(b *batch) error {
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
	id      hold.ID
	at      time.Time
	earlier hold.Earlier
}

func (op releasing) ready(*Ledger) (step, error) {
	if op.at.IsZero() {
		return step{}, fmt.Errorf("releasing owner %s: %w: no time", op.id, ErrInvalid)
	}
	return step{sectorSize, func(b *batch) error {
		if err := b.releasing(op.id, promised(op.at, op.earlier)); err != nil {
			return fmt.Errorf("releasing owner %s: %w", op.id, err)
		}
		return nil
	}}, nil
}

type forget struct {
	id     hold.ID
	at     time.Time
	unused bool
}

func (op forget) ready(*Ledger) (step, error) {
	if op.at.IsZero() && !op.unused {
		return step{}, fmt.Errorf("forgetting owner %s: %w: no time", op.id, ErrInvalid)
	}
	return step{sectorSize, func(b *batch) error {
		if err := b.forget(op.id, plain(op.at), op.unused); err != nil {
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
	return step{sectorSize, func(b *batch) error { b.bury(op.tomb); return nil }}, nil
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

type fits struct{}

func (fits) ready(*Ledger) (step, error) {
	return step{0, (*batch).room}, nil
}

type setEpoch struct{ epoch Epoch }

func (op setEpoch) ready(*Ledger) (step, error) {
	return step{sectorSize, func(b *batch) error { return b.begins(func(b *batch) { b.epoch = op.epoch }) }}, nil
}

type founded struct{ first First }

func (op founded) ready(*Ledger) (step, error) {
	return step{sectorSize, func(b *batch) error { return b.begins(func(b *batch) { b.first = &op.first }) }}, nil
}

type quarantine struct{ since, until time.Time }

func (op quarantine) ready(*Ledger) (step, error) {
	if op.since.IsZero() || op.until.Before(op.since) {
		return step{}, fmt.Errorf("quarantine from %s to %s: %w", op.since, op.until, ErrInvalid)
	}
	return step{sectorSize, func(b *batch) error {
		return b.begins(func(b *batch) { b.quarantine = b.spans.keep(Quarantine{plain(op.since), plain(op.until)}) })
	}}, nil
}

// Package drain is the agent's end of the deletion queue. A deletion that no agent heard
// of waits in a file (internal/deletions); it is done before the API opens, and whenever
// one is found later. Its file is removed after the commit that promises the release:
// should the agent die in between, the deletion is done again, and spares what began
// after it. So nothing of the queue has to be in the ledger.
package drain

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/berth-net/berth/internal/attachment"
	"github.com/berth-net/berth/internal/daemon"
	"github.com/berth-net/berth/internal/deletions"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/ipam"
	"github.com/berth-net/berth/internal/ledger"
	"github.com/berth-net/berth/internal/mode"
	"github.com/berth-net/berth/internal/patience"
	"github.com/berth-net/berth/internal/stamp"
)

const (
	// drainBy is how many deletions share a commit.
	drainBy = 256
	// drainAgain is the first wait after a drain that failed, and drainLater
	// the longest.
	drainAgain = time.Second
	drainLater = time.Minute
	// stopped is how long a drain waits for whoever takes a pod that it deletes to
	// stop: what waits behind it may be of others. The engine goes on by itself.
	stopped = 2 * time.Second
	// skew is how far ahead of the agent's clock a deletion may begin, as a request
	// may (daemon.When).
	skew = time.Millisecond
)

// Drain does the deletions that wait.
type Drain struct {
	*daemon.Core
	queue
	index  *attachment.Index
	pools  *ipam.IPAM
	finder mode.Finder

	adopting sync.Map // hold.ID to []netip.Addr: adopted, not in the ledger yet
}

// Open opens the queue and watches it by noticed (node.Node): what is written from now on
// is noticed. finder is the mode that adopts what the ledger lacks.
func Open(d *daemon.Core, noticed func(*deletions.Queue, func()) error, x *attachment.Index, pools *ipam.IPAM, finder mode.Finder) (*Drain, error) {
	q := &Drain{Core: d, index: x, pools: pools, finder: finder}
	return q, q.open(noticed)
}

// Follow keeps what is being adopted in step with the ledger's commits.
func (d *Drain) Follow(c ledger.Change) {
	for _, edit := range c.Owners {
		if edit.Before == nil {
			d.adopting.Delete(edit.After.ID)
		}
	}
}

// All does the deletions that wait. What fails stays in the queue; it is tried
// again by the next drain, and holds up no other container's. It waits for a folder
// that hangs no longer than drainLimit: going says then whom nobody may mend.
func (d *Drain) All(ctx context.Context) error {
	_, err := patience.Call(&d.calls, draining, drainLimit, func() (none struct{}, err error) {
		return none, d.Now(ctx)
	}, nil)
	if err == patience.ErrHangs {
		err = fmt.Errorf("doing deletions: %w", err)
	}
	return err
}

// Now is All, for as long as it takes.
func (d *Drain) Now(ctx context.Context) error {
	told := d.told.Load()
	err := d.drainAll(ctx)
	if err == nil {
		d.done.Store(told)
	}
	return err
}

func (d *Drain) drainAll(ctx context.Context) error {
	pending, err := d.Pending()
	d.date(pending)
	if err != nil {
		err = fmt.Errorf("looking for deletions: %w", err)
	}
	if len(pending) == 0 {
		return err
	}
	d.Log.Info("doing deletions that were written down while no agent answered", "deletions", len(pending))
	// Who was not cut off can still send.
	slices.SortStableFunc(pending, func(x, y deletions.Entry) int { return order(x.Record.Cut) - order(y.Record.Cut) })
	errs := []error{err}
	for chunk := range slices.Chunk(pending, drainBy) {
		errs = append(errs, d.undertake(ctx, chunk))
	}
	return errors.Join(errs...)
}

func order(cut bool) int {
	if cut {
		return 1
	}
	return 0
}

// Key does the deletions of one key, before an ADD of it. It waits for a folder that
// hangs no longer than lookLimit, and drainLimit if there are some: others want the
// ADD's place.
func (d *Drain) Key(ctx context.Context, k attachment.Key) error {
	pending, err := d.lookFor(k)
	if len(pending) > 0 {
		_, undone := patience.Call(&d.calls, draining, drainLimit, func() (none struct{}, err error) {
			return none, d.undertake(ctx, pending)
		}, nil)
		err = errors.Join(err, undone)
	}
	if err != nil {
		return fmt.Errorf("deletions of %s come first: %w", k, err)
	}
	return nil
}

// lookFor is pendingOf, for lookLimit.
func (d *Drain) lookFor(k attachment.Key) ([]deletions.Entry, error) {
	pending, err := patience.Call(&d.calls, looking, lookLimit, func() ([]deletions.Entry, error) { return d.pendingOf(k) }, nil)
	if err == patience.ErrHangs {
		err = fmt.Errorf("looking for deletions: %w", err)
	}
	return pending, err
}

// pendingOf returns the deletions of one key that wait.
func (d *Drain) pendingOf(k attachment.Key) ([]deletions.Entry, error) {
	pending, err := d.PendingOf(k.Network, k.ContainerID, k.Ifname)
	d.date(pending)
	return pending, err
}

// date makes now of the start of deletions that begin later than that, in this
// boot: somebody in another time namespace has written them, or somebody's error.
// Undated, such a deletion would be about every ADD until its time has come, and
// so would its tombstone. The API refuses a request from the future instead
// (daemon.When): there somebody is told.
func (d *Drain) date(entries []deletions.Entry) {
	for i := range entries {
		r := &entries[i].Record
		if now := d.Boottime(); r.Boot == d.Boot && r.Started > now+int64(skew) {
			d.Log.Warn("a queued deletion is from the future, and is taken to be of now: is its plugin in another time namespace?",
				"deletion", entries[i].Name, "ahead", time.Duration(r.Started-now))
			r.Started = now
		}
	}
}

// undertake promises deletions in one commit, cuts off whom they are about, and
// removes their files. If the commit fails each is tried by itself; one that fails
// keeps back what comes after it for the same container. Whom a cut fails of is
// promised all the same, and the engine's to try again.
func (d *Drain) undertake(ctx context.Context, entries []deletions.Entry) error {
	done := entries
	records := make([]deletions.Record, len(entries))
	for i, e := range entries {
		records[i] = e.Record
	}
	var errs []error
	going, err := d.Promise(ctx, records...)
	if err != nil {
		done = nil
		failed := map[string]bool{}
		for _, e := range entries {
			if failed[e.Record.Container] {
				continue
			}
			more, err := d.Promise(ctx, e.Record)
			going = append(going, more...)
			if err != nil {
				failed[e.Record.Container] = true
				errs = append(errs, fmt.Errorf("deletion %s: %w", e.Name, err))
				continue
			}
			done = append(done, e)
		}
	}
	waiting, cancel := context.WithTimeout(ctx, stopped)
	defer cancel()
	if err := d.Engine.Depart(waiting, going); err != nil {
		d.Log.Warn("a queued deletion is promised, and its cut is tried again", "err", err)
	}
	names := make([]string, len(done))
	for i, e := range done {
		names[i] = e.Name
	}
	if len(names) > 0 {
		errs = append(errs, d.Remove(names...))
	}
	return errors.Join(errs...)
}

// Unknown releases the attachment that a DEL's link names, if it is not among those that
// are being released: only its link and its runtime may know of it. started is when the DEL
// began, CLOCK_BOOTTIME in nanoseconds. It returns who is released now.
func (d *Drain) Unknown(ctx context.Context, k attachment.Key, link string, started int64, known []hold.ID) ([]hold.ID, error) {
	if id, named := stamp.LinkID(link); !named || slices.Contains(known, id) {
		return nil, nil
	}
	more, err := d.Promise(ctx, deletions.Record{
		Network: k.Network, Container: k.ContainerID, Ifname: k.Ifname, Link: link, Boot: d.Boot, Started: started,
	})
	return more, errors.Join(err, d.Engine.Depart(ctx, more))
}

// attempts is how often a deletion looks again at a ledger that has changed
// since it looked.
const attempts = 3

// Promise commits that whom deletions are about is releasing, with the deletions'
// tombstones, and returns who that is, to be departed (engine.Depart). nil is that
// all of it is in the ledger. After an error nothing is, for all that is known, but
// the release of those that are returned.
func (d *Drain) Promise(ctx context.Context, records ...deletions.Record) ([]hold.ID, error) {
	var going []hold.ID
	for try := 1; ; try++ {
		more, err := d.tryPromise(ctx, records)
		going = append(going, more...)
		var taken *ledger.NameTakenError
		switch {
		case err == nil && d.missed(records): // an ADD came between the look and the tombstone; none can now
		case try < attempts && (errors.Is(err, ledger.ErrExists) || errors.As(err, &taken)): // an ADD was faster
		case errors.Is(err, ledger.ErrChanged): // an ADD has been answered with one of them, and may have begun later
		default:
			return going, err
		}
	}
}

func (d *Drain) tryPromise(ctx context.Context, records []deletions.Record) ([]hold.ID, error) {
	w := d.plan(records)
	if len(w.unknown) > 0 {
		done, err := d.turn.Take(ctx)
		if err != nil {
			return nil, err
		}
		defer done()
		w = d.plan(records) // who had the turn before may have adopted them
		for _, r := range w.unknown {
			d.adopt(w, r)
		}
		defer d.disown(w) // what is not begun by then
	}
	if err := errors.Join(w.errs...); err != nil || len(w.ids)+len(w.ops) == 0 {
		return nil, err
	}
	return d.Engine.Promise(ctx, w.ids, w.ops...)
}

// missed reports whether somebody is wanted whom deletions are about.
func (d *Drain) missed(records []deletions.Record) bool {
	return slices.ContainsFunc(records, func(r deletions.Record) bool {
		return slices.ContainsFunc(d.meant(r), func(e *attachment.Entry) bool { return e.Owner.Wanted() })
	})
}

// work is what some deletions come to.
type work struct {
	ids     []hold.ID
	ops     []ledger.Op
	unknown []deletions.Record // about somebody whom the ledger may lack
	adopted []hold.ID          // begun by ops
	errs    []error
}

func (d *Drain) plan(records []deletions.Record) *work {
	w := &work{}
	now := d.Boottime()
	for _, r := range records {
		meant := d.meant(r)
		for _, e := range meant {
			w.ids = append(w.ids, e.Owner.ID)
			w.ops = append(w.ops, ledger.Unchanged(e.Owner))
		}
		// A tombstone is of use while an older ADD may be on its way.
		if until := r.Started + int64(daemon.LongestRequest); r.Boot == d.Boot && until > now {
			w.ops = append(w.ops, ledger.Bury(ledger.Tombstone{
				Key: r.Key().String(), Boot: r.Boot, Started: r.Started, Until: until,
			}))
		}
		if r.Link != "" && !slices.ContainsFunc(meant, func(e *attachment.Entry) bool { return hasLink(e, r.Link) }) {
			w.unknown = append(w.unknown, r)
		} else if len(meant) == 0 {
			d.WarnUnsure(r.Key())
		}
	}
	return w
}

// meant returns the incarnations that a deletion is about: those of its key whose
// ADD began before it. The link that it names does not choose among them: a
// runtime may know the result of an earlier ADD alone, or a wrong one, and means
// what it has attached last.
func (d *Drain) meant(r deletions.Record) []*attachment.Entry {
	es, _ := d.index.Called(r.Key())
	return slices.DeleteFunc(es, func(e *attachment.Entry) bool {
		return !e.Record.BeganBeforeDeletion(r.Boot, r.Started, d.Boot)
	})
}

// Going reports whether a deletion of an attachment waits: what a plugin has cut
// off must not come back before that is done.
func (d *Drain) Going(o hold.Owner) bool {
	e := d.index.Get(o.ID)
	if e == nil {
		return false
	}
	pending, err := d.lookFor(e.Record.Key)
	if errors.Is(err, patience.ErrHangs) {
		return !d.Quiet()
	}
	return err != nil || slices.ContainsFunc(pending, func(q deletions.Entry) bool {
		return slices.ContainsFunc(d.meant(q.Record), func(e *attachment.Entry) bool { return e.Owner.ID == o.ID })
	})
}

func hasLink(e *attachment.Entry, name string) bool {
	id, ok := stamp.LinkID(name)
	return ok && id == e.Owner.ID
}

// Keep does deletions as they come in, until ctx ends, and then those that have come
// in until then. After one that failed it tries again by itself.
func (d *Drain) Keep(ctx context.Context) {
	failed := 0 // drains in a row
	var again <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			if err := d.All(context.WithoutCancel(ctx)); err != nil {
				d.Log.Error("deletions wait for the next agent", "err", err)
			}
			return
		case <-d.news:
		case <-again:
		}
		again = nil
		if err := d.All(ctx); err != nil {
			failed++
			pause := patience.Backoff(drainAgain, drainLater, failed)
			d.Log.Error("deletions wait", "err", err, "next try in", pause)
			again = time.After(pause)
			continue
		}
		failed = 0
		d.KeepSpares()
	}
}

// WarnUnsure tells people of a deletion that nobody is released by, since its key is
// that of several pods, for all that is known.
func (d *Drain) WarnUnsure(k attachment.Key) {
	if _, unsure := d.index.Called(k); unsure {
		d.Log.Warn("a deletion releases nobody: the ledger was lost, and several pods' names begin so; each is released with its network namespace",
			"key", k)
	}
}

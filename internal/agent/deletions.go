package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/berth-net/berth/internal/stamp"

	"github.com/berth-net/berth/internal/attachment"
	"github.com/berth-net/berth/internal/deletions"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/ledger"
	"github.com/berth-net/berth/internal/patience"
)

// A deletion that no agent heard of waits in a file (internal/deletions). It is
// done before the API opens, and whenever one is found later. Its file is
// removed after the commit that promises the release: should the agent die in
// between, it is done again, and spares what began after it. So nothing of the
// queue has to be in the ledger.

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
	// may (server.When).
	skew = time.Millisecond
)

// Drain does the deletions that wait. What fails stays in the queue; it is tried
// again by the next drain, and holds up no other container's. It waits for a folder
// that hangs no longer than drainLimit: going says then whom nobody may mend.
func (a *Agent) Drain(ctx context.Context) error {
	_, err := patience.Call(&a.queue.calls, draining, drainLimit, func() (none struct{}, err error) {
		return none, a.drain(ctx)
	}, nil)
	if err == patience.ErrHangs {
		err = fmt.Errorf("doing deletions: %w", err)
	}
	return err
}

// drain is Drain, for as long as it takes.
func (a *Agent) drain(ctx context.Context) error {
	told := a.queue.told.Load()
	err := a.drainAll(ctx)
	if err == nil {
		a.queue.done.Store(told)
	}
	return err
}

func (a *Agent) drainAll(ctx context.Context) error {
	pending, err := a.queue.Pending()
	a.date(pending)
	if err != nil {
		err = fmt.Errorf("looking for deletions: %w", err)
	}
	if len(pending) == 0 {
		return err
	}
	a.Log.Info("doing deletions that were written down while no agent answered", "deletions", len(pending))
	// Who was not cut off can still send.
	slices.SortStableFunc(pending, func(x, y deletions.Entry) int { return order(x.Record.Cut) - order(y.Record.Cut) })
	errs := []error{err}
	for chunk := range slices.Chunk(pending, drainBy) {
		errs = append(errs, a.undertake(ctx, chunk))
	}
	return errors.Join(errs...)
}

func order(cut bool) int {
	if cut {
		return 1
	}
	return 0
}

// drainKey does the deletions of one key, before an ADD of it.
func (a *Agent) drainKey(ctx context.Context, k attachment.Key) error {
	err := a.queue.hangs() // a call with a limit would cost each ADD a goroutine
	if err == nil {
		var pending []deletions.Entry
		if pending, err = a.pendingOf(k); len(pending) > 0 {
			err = errors.Join(err, a.undertake(ctx, pending))
		}
	}
	if err != nil {
		return fmt.Errorf("deletions of %s come first: %w", k, err)
	}
	return nil
}

// pendingOf returns the deletions of one key that wait.
func (a *Agent) pendingOf(k attachment.Key) ([]deletions.Entry, error) {
	pending, err := a.queue.PendingOf(k.Network, k.ContainerID, k.Ifname)
	a.date(pending)
	return pending, err
}

// date makes now of the start of deletions that begin later than that, in this
// boot: somebody in another time namespace has written them, or somebody's error.
// Undated, such a deletion would be about every ADD until its time has come, and
// so would its tombstone. The API refuses a request from the future instead
// (server.When): there somebody is told.
func (a *Agent) date(entries []deletions.Entry) {
	for i := range entries {
		r := &entries[i].Record
		if now := a.boottime(); r.Boot == a.boot && r.Started > now+int64(skew) {
			a.Log.Warn("a queued deletion is from the future, and is taken to be of now: is its plugin in another time namespace?",
				"deletion", entries[i].Name, "ahead", time.Duration(r.Started-now))
			r.Started = now
		}
	}
}

// undertake promises deletions in one commit, cuts off whom they are about, and
// removes their files. If the commit fails each is tried by itself; one that fails
// keeps back what comes after it for the same container. Whom a cut fails of is
// promised all the same, and the engine's to try again.
func (a *Agent) undertake(ctx context.Context, entries []deletions.Entry) error {
	done := entries
	records := make([]deletions.Record, len(entries))
	for i, e := range entries {
		records[i] = e.Record
	}
	var errs []error
	going, err := a.promise(ctx, records...)
	if err != nil {
		done = nil
		failed := map[string]bool{}
		for _, e := range entries {
			if failed[e.Record.Container] {
				continue
			}
			more, err := a.promise(ctx, e.Record)
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
	if err := a.engine.Depart(waiting, going); err != nil {
		a.Log.Warn("a queued deletion is promised, and its cut is tried again", "err", err)
	}
	names := make([]string, len(done))
	for i, e := range done {
		names[i] = e.Name
	}
	if len(names) > 0 {
		errs = append(errs, a.queue.Remove(names...))
	}
	return errors.Join(errs...)
}

// attempts is how often a deletion looks again at a ledger that has changed
// since it looked.
const attempts = 3

// promise commits that whom deletions are about is releasing, with the deletions'
// tombstones, and returns who that is, to be departed (engine.Depart). nil is that
// all of it is in the ledger. After an error nothing is, for all that is known, but
// the release of those that are returned.
func (a *Agent) promise(ctx context.Context, records ...deletions.Record) ([]hold.ID, error) {
	var going []hold.ID
	for try := 1; ; try++ {
		more, err := a.tryPromise(ctx, records)
		going = append(going, more...)
		var taken *ledger.NameTakenError
		switch {
		case err == nil && a.missed(records): // an ADD came between the look and the tombstone; none can now
		case try < attempts && (errors.Is(err, ledger.ErrExists) || errors.As(err, &taken)): // an ADD was faster
		case errors.Is(err, ledger.ErrChanged): // an ADD has been answered with one of them, and may have begun later
		default:
			return going, err
		}
	}
}

func (a *Agent) tryPromise(ctx context.Context, records []deletions.Record) ([]hold.ID, error) {
	w := a.plan(records)
	if len(w.unknown) > 0 {
		select {
		case a.queue.turn <- struct{}{}:
			defer func() { <-a.queue.turn }()
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		w = a.plan(records) // who had the turn before may have adopted them
		for _, r := range w.unknown {
			w.adopt(a, r)
		}
		defer a.disown(w) // what is not begun by then
	}
	if err := errors.Join(w.errs...); err != nil || len(w.ids)+len(w.ops) == 0 {
		return nil, err
	}
	return a.engine.Promise(ctx, w.ids, w.ops...)
}

// missed reports whether somebody is wanted whom deletions are about.
func (a *Agent) missed(records []deletions.Record) bool {
	return slices.ContainsFunc(records, func(r deletions.Record) bool {
		return slices.ContainsFunc(a.meant(r), func(e *entry) bool { return e.owner.Wanted() })
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

func (a *Agent) plan(records []deletions.Record) *work {
	w := &work{}
	now := a.boottime()
	for _, r := range records {
		meant := a.meant(r)
		for _, e := range meant {
			w.ids = append(w.ids, e.owner.ID)
			w.ops = append(w.ops, ledger.Unchanged(e.owner))
		}
		// A tombstone is of use while an older ADD may be on its way.
		if until := r.Started + int64(longestAdd); r.Boot == a.boot && until > now {
			w.ops = append(w.ops, ledger.Bury(ledger.Tombstone{
				Key: keyOfDeletion(r).String(), Boot: r.Boot, Started: r.Started, Until: until,
			}))
		}
		if r.Link != "" && !slices.ContainsFunc(meant, func(e *entry) bool { return hasLink(e, r.Link) }) {
			w.unknown = append(w.unknown, r)
		} else if len(meant) == 0 {
			a.warnUnsure(keyOfDeletion(r))
		}
	}
	return w
}

// meant returns the incarnations that a deletion is about: those of its key whose
// ADD began before it. The link that it names does not choose among them: a
// runtime may know the result of an earlier ADD alone, or a wrong one, and means
// what it has attached last.
func (a *Agent) meant(r deletions.Record) []*entry {
	es, _ := a.index.called(keyOfDeletion(r))
	return slices.DeleteFunc(es, func(e *entry) bool {
		return !e.record.BeganBeforeDeletion(r.Boot, r.Started, a.boot)
	})
}

// going reports whether a deletion of an attachment waits: what a plugin has cut
// off must not come back before that is done.
func (a *Agent) going(o hold.Owner) bool {
	e := a.index.get(o.ID)
	if e == nil {
		return false
	}
	pending, err := patience.Call(&a.queue.calls, looking, lookLimit, func() ([]deletions.Entry, error) {
		return a.pendingOf(e.record.Key)
	}, nil)
	if err == patience.ErrHangs {
		return !a.queue.quiet()
	}
	return err != nil || slices.ContainsFunc(pending, func(d deletions.Entry) bool {
		return slices.ContainsFunc(a.meant(d.Record), func(e *entry) bool { return e.owner.ID == o.ID })
	})
}

func hasLink(e *entry, name string) bool {
	id, ok := stamp.LinkID(name)
	return ok && id == e.owner.ID
}

func keyOfDeletion(r deletions.Record) attachment.Key {
	return attachment.Key{Network: r.Network, ContainerID: r.Container, Ifname: r.Ifname}
}

// keepDrained does deletions as they come in, until ctx ends. After one that
// failed it tries again by itself.
func (a *Agent) keepDrained(ctx context.Context) {
	pause := drainAgain
	var again <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.queue.news:
		case <-again:
		}
		again = nil
		if err := a.Drain(ctx); err != nil {
			a.Log.Error("deletions wait", "err", err, "next try in", pause)
			again = time.After(pause)
			pause = min(2*pause, drainLater)
			continue
		}
		pause = drainAgain
		a.keepSpares()
	}
}

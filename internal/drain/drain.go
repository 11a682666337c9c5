// Package drain is the agent's end of the deletion queue. A deletion that no agent heard
// of waits in a file (internal/deletions). The agent does the deletions that wait before its
// API opens, and later ones when it finds them. It removes a deletion's file after the commit
// that promises the release. If the agent dies in between, the next agent does the deletion
// again, and the deletion spares what began after it. So the ledger need not record the queue.
// Only for the history, the promise says when the deletion was queued, and when its pod was cut off.
package drain

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/attachment"
	"github.com/berth-net/berth/internal/daemon"
	"github.com/berth-net/berth/internal/deletions"
	"github.com/berth-net/berth/internal/engine"
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
	// stopped limits how long a drain waits until the pods that it deletes are cut off, and
	// until an ADD or a repair of such a pod has stopped: deletions of other pods may wait behind
	// the drain. The engine goes on by itself.
	stopped = 2 * time.Second
	// skew is how far ahead of the agent's clock a deletion may begin. A request may begin as
	// far ahead (daemon.When).
	skew = time.Millisecond
)

// Drain does the deletions that wait.
type Drain struct {
	*daemon.Core
	queue
	index  *attachment.Index
	pools  *ipam.IPAM
	finder mode.Finder

	adopting  sync.Map // hold.ID to []netip.Addr: claimed for adopted owners that are not in the ledger yet
	requested sync.Map // hold.ID: owners whose release a request has asked for, and the ledger has not promised
}

// Open opens the queue and watches it by noticed (node.Node), so that no deletion that is
// written from now on is missed. finder is the mode that adopts what the ledger lacks.
func Open(d *daemon.Core, noticed func(watch func(func()) error, changed func()) error, x *attachment.Index, pools *ipam.IPAM, finder mode.Finder) (*Drain, error) {
	q := &Drain{Core: d, index: x, pools: pools, finder: finder}
	return q, q.open(noticed)
}

// Follow keeps adopting and requested in step with the ledger's commits.
func (d *Drain) Follow(c ledger.Change) {
	for _, edit := range c.Owners {
		if edit.Before == nil {
			d.adopting.Delete(edit.After.ID)
		} else {
			d.requested.Delete(edit.Before.ID) // its release is promised, or a repeated ADD wants it
		}
	}
}

// Asked notes that a plugin asks for the release of owners. The caller calls answered with the outcome. If
// the ledger could not promise the release, because the disk hangs for example, the runtime repeats its
// DEL, and the plugin may have cut the pods off: from now on Going reports these owners, until the ledger
// promises their release, or a repeated ADD is answered with them.
func (d *Drain) Asked(ids []hold.ID) (answered func(error)) {
	var first []hold.ID // asked for the first time
	for _, id := range ids {
		if _, again := d.requested.LoadOrStore(id, nil); !again {
			first = append(first, id)
		}
	}
	return func(err error) {
		for _, id := range ids {
			if o, known := d.Ledger.Owner(id); err == nil || !known || !o.Wanted() {
				d.requested.Delete(id)
			} else if e := d.index.Get(id); e != nil && slices.Contains(first, id) {
				d.Log.Warn("could not promise a deletion: the agent leaves the pod's link as the plugin leaves it, until the runtime repeats DEL",
					"pod", e.Record.Key.String(), "attachment", string(id), "err", err)
			}
		}
	}
}

// All does the deletions that wait. A deletion that fails stays in the queue for the next
// drain, and holds up no deletion of another container. All waits no longer than drainLimit
// for a folder that hangs: Going then says which attachments must not be repaired.
func (d *Drain) All(ctx context.Context) error {
	_, err := patience.Call(&d.calls, draining, drainLimit, func() (none struct{}, err error) {
		return none, d.Now(ctx)
	}, nil)
	if err == patience.ErrHangs {
		err = fmt.Errorf("carrying out queued deletions: %w", err)
	}
	return err
}

// Now is All without the limit.
func (d *Drain) Now(ctx context.Context) error {
	told := d.told.Load()
	err := d.drainAll(ctx)
	if err == nil {
		for was := d.done.Load(); was < told && !d.done.CompareAndSwap(was, told); was = d.done.Load() {
			// A drain that hung may end after a later drain.
		}
	}
	return err
}

func (d *Drain) drainAll(ctx context.Context) error {
	pending, err := d.Pending()
	d.date(pending)
	if err != nil {
		err = fmt.Errorf("looking for queued deletions: %w", err)
	}
	if len(pending) == 0 {
		return err
	}
	d.Log.Info("carrying out deletions that the plugin queued while no agent answered", "deletions", len(pending))
	// Pods that nobody has cut off can still send: their deletions come first.
	slices.SortStableFunc(pending, func(x, y deletions.Entry) int { return order(x.Record.Cut) - order(y.Record.Cut) })
	ctx = d.asked(ctx, pending)
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

// Key does the deletions of one key, before an ADD of that key. If the folder hangs, Key
// waits for it no longer than lookLimit, and drainLimit more if it has found deletions: other
// requests want the ADD's place.
func (d *Drain) Key(ctx context.Context, k attachment.Key) error {
	pending, err := d.lookFor(k)
	if len(pending) > 0 {
		ctx = d.asked(ctx, pending)
		_, undone := patience.Call(&d.calls, draining, drainLimit, func() (none struct{}, err error) {
			return none, d.undertake(ctx, pending)
		}, nil)
		err = errors.Join(err, undone)
	}
	if err != nil {
		return fmt.Errorf("the queued deletions of %s come first: %w", k, err)
	}
	return nil
}

// lookFor is pendingOf, but waits no longer than lookLimit.
func (d *Drain) lookFor(k attachment.Key) ([]deletions.Entry, error) {
	pending, err := patience.Call(&d.calls, looking, lookLimit, func() ([]deletions.Entry, error) { return d.pendingOf(k) }, nil)
	if err == patience.ErrHangs {
		err = fmt.Errorf("looking for queued deletions: %w", err)
	}
	return pending, err
}

// pendingOf returns the deletions of one key that wait.
func (d *Drain) pendingOf(k attachment.Key) ([]deletions.Entry, error) {
	pending, err := d.PendingOf(k.Network, k.ContainerID, k.Ifname)
	d.date(pending)
	return pending, err
}

// date sets the start of each deletion of this boot that begins in the future to now. Such a
// deletion comes from a plugin in another time namespace, or from an error. With its own start,
// the deletion and its tombstone would hit every ADD until that time has come. The API refuses
// a request from the future instead (daemon.When), because there somebody gets the answer.
func (d *Drain) date(entries []deletions.Entry) {
	for i := range entries {
		r := &entries[i].Record
		if now := d.Boottime(); r.Boot == d.Boot && r.Started > now+int64(skew) {
			d.Log.Warn("a queued deletion's time is in the future, and the agent takes the present time instead: is its plugin in another time namespace?",
				"deletion", entries[i].Name, "ahead", time.Duration(r.Started-now))
			r.Started = now
		}
	}
}

// asked returns a context in which the promises count as plugins' promises. The plugins' files say
// when they took each DEL, and when they cut its pod off.
func (d *Drain) asked(ctx context.Context, pending []deletions.Entry) context.Context {
	of := map[attachment.Key][]deletions.Entry{}
	for _, e := range pending {
		k := e.Record.Key()
		of[k] = append(of[k], e)
	}
	wall, boottime := d.Wall(), d.Boottime()
	return engine.AskedEarlier(engine.AskedBy(ctx, api.AskedQueued), func(id hold.ID) hold.Earlier {
		e := d.index.Get(id)
		if e == nil {
			return hold.Earlier{}
		}
		q := e.Record.Queued(of[e.Record.Key], wall, d.Boot, boottime)
		return hold.Earlier{Asked: q.At, Cut: q.Cut}
	})
}

// undertake promises deletions in one commit, for the plugins that ctx names (asked), cuts off the
// deletions' pods, and removes the deletions' files. If the commit fails, it tries
// each deletion by itself; after one that fails it leaves later deletions of the same container
// in the queue. A cut that fails changes nothing of the promise: the pod's release follows.
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
	for _, id := range going {
		if e := d.index.Get(id); e != nil {
			d.Log.Info("detached by a queued deletion", e.About()...)
		}
	}
	waiting, cancel := context.WithTimeout(ctx, stopped)
	defer cancel()
	if err := d.Engine.Depart(waiting, going); err != nil {
		d.Log.Warn("could not cut off the pod of a queued deletion; the agent releases what the pod can be reached by", "err", err)
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

// Unknown releases the attachment that a DEL's link names, unless its id is in known, the
// attachments that are being released already. It is for an attachment that only the link
// and the runtime may know of. started is when the DEL began, CLOCK_BOOTTIME in nanoseconds.
// Unknown returns the owners that it releases.
func (d *Drain) Unknown(ctx context.Context, k attachment.Key, link string, started int64, known []hold.ID) ([]hold.ID, error) {
	if id, named := stamp.LinkID(link); !named || slices.Contains(known, id) {
		return nil, nil
	}
	more, err := d.Promise(engine.AskedBy(ctx, api.AskedDelete), deletions.Record{
		Network: k.Network, Container: k.ContainerID, Ifname: k.Ifname, Link: link, Boot: d.Boot, Started: started,
	})
	return more, errors.Join(err, d.Engine.Depart(ctx, more))
}

// attempts is how often Promise tries to adopt owners if an ADD takes their id or their
// addresses first.
const attempts = 3

// Promise commits that the owners which deletions are about are releasing, with the
// deletions' tombstones. It returns these owners; the caller has the engine cut them off
// (engine.Depart). If the error is nil, all of this is in the ledger. After an error, Promise knows only
// of the owners that it returns that their release is in the ledger.
func (d *Drain) Promise(ctx context.Context, records ...deletions.Record) ([]hold.ID, error) {
	var going []hold.ID
	for try := 1; ; try++ {
		more, err := d.tryPromise(ctx, records)
		going = append(going, more...)
		var taken *ledger.NameTakenError
		switch {
		case err == nil && d.missed(records): // an ADD came between the look and the tombstone; no other can now
		case try < attempts && (errors.Is(err, ledger.ErrExists) || errors.As(err, &taken)): // an ADD was faster
		case errors.Is(err, ledger.ErrChanged): // a repeated ADD was answered with one of the owners, and may have begun after the deletion
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
		w = d.plan(records) // the turn's former holder may have adopted the unknown owners
		for _, r := range w.unknown {
			d.adopt(w, r)
		}
		defer d.disown(w) // the owners that the commit has not begun
	}
	if err := errors.Join(w.errs...); err != nil || len(w.ids)+len(w.ops) == 0 {
		return nil, err
	}
	return d.Engine.Promise(ctx, w.ids, w.ops...)
}

// missed reports whether an owner that deletions are about is still wanted.
func (d *Drain) missed(records []deletions.Record) bool {
	return slices.ContainsFunc(records, func(r deletions.Record) bool {
		return slices.ContainsFunc(d.meant(r), func(e *attachment.Entry) bool { return e.Owner.Wanted() })
	})
}

// Keep does deletions as they come in, until ctx ends, and then once more the deletions that have
// come in by then. After a drain that failed, Keep tries again by itself.
func (d *Drain) Keep(ctx context.Context) {
	failed := 0 // drains in a row
	var again <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			if err := d.All(context.WithoutCancel(ctx)); err != nil {
				d.Log.Error("could not carry out all queued deletions; the next agent does", "err", err)
			}
			return
		case <-d.news:
		case <-again:
		}
		again = nil
		if err := d.All(ctx); err != nil {
			failed++
			pause := patience.Backoff(drainAgain, drainLater, failed)
			d.Log.Error("could not carry out all queued deletions", "err", err, "next try in", pause)
			again = time.After(pause)
			continue
		}
		failed = 0
		d.refill() // KeepRoom does it, because the next deletions must not wait for the files
	}
}

// WarnUnsure logs a deletion of k that releases nobody because k may be the key of several
// adopted pods.
func (d *Drain) WarnUnsure(k attachment.Key) {
	if _, unsure := d.index.Called(k); unsure {
		d.Log.Warn("a deletion releases no pod: the ledger was lost, and the deletion fits several pods by what their links' aliases still say; the agent releases each pod when its network namespace is gone",
			"key", k)
	}
}

package drain

import (
	"errors"
	"slices"

	"github.com/berth-net/berth/internal/attachment"
	"github.com/berth-net/berth/internal/daemon"
	"github.com/berth-net/berth/internal/deletions"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/ledger"
	"github.com/berth-net/berth/internal/patience"
	"github.com/berth-net/berth/internal/stamp"
)

// work is what one commit has to do for some deletions.
type work struct {
	ids     []hold.ID // owners to be released
	ops     []ledger.Op
	unknown []deletions.Record // deletions whose owner the ledger may lack
	adopted []hold.ID          // owners that ops begin
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
		// A tombstone is of use as long as an older ADD may be on its way.
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

// meant returns the incarnations that a deletion is about: the incarnations of its key whose ADD
// began before the deletion. The link that the deletion names does not choose among them: the
// runtime may have only the result of an earlier ADD, or a wrong one, and means the incarnation
// that it attached last.
func (d *Drain) meant(r deletions.Record) []*attachment.Entry {
	es, _ := d.index.Called(r.Key())
	return slices.DeleteFunc(es, func(e *attachment.Entry) bool {
		return !e.Record.BeganBeforeDeletion(r.Boot, r.Started, d.Boot)
	})
}

// Going reports whether a deletion of an attachment waits, in the queue or in a request (Asked): a pod
// that a plugin has cut off must not get its network back before the deletion is done, and a pod whose
// plugin has found nothing to cut off must not get a network. If the look at the folder fails when
// something new may be in the folder (Quiet, Watched), Going returns why. If nothing new can be there, a
// link that others have set down does not wait for the folder, whatever the reason, such as a folder that
// hangs or that belongs to somebody else.
func (d *Drain) Going(id hold.ID) (bool, error) {
	if _, asked := d.requested.Load(id); asked {
		return true, nil
	}
	e := d.index.Get(id)
	if e == nil {
		return false, nil
	}
	if e.Record.Further() {
		return d.Going(e.Record.First) // a deletion names the first attachment, and takes the others along
	}
	pending, err := d.lookFor(e.Record.Key)
	going := slices.ContainsFunc(pending, func(q deletions.Entry) bool {
		return slices.ContainsFunc(d.meant(q.Record), func(e *attachment.Entry) bool { return e.Owner.ID == id })
	})
	if going || err == nil {
		return going, nil
	}
	// A look that hangs takes so long that a queue which is not watched is no longer quiet by then.
	if d.Quiet() && (d.Watched() || errors.Is(err, patience.ErrHangs)) {
		return false, nil
	}
	return false, err
}

// Later returns Going of the Drain that *d has when somebody asks: the links' kind is made before the
// queue is opened.
func Later(d **Drain) func(hold.ID) (bool, error) {
	return func(id hold.ID) (bool, error) { return (*d).Going(id) }
}

func hasLink(e *attachment.Entry, name string) bool {
	id, ok := stamp.EndID(name)
	return ok && id == e.Owner.ID
}

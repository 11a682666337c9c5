package rebuild

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"github.com/berth-net/berth/internal/daemon"
	"github.com/berth-net/berth/internal/deletions"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/ledger"
	"github.com/berth-net/berth/internal/root"
	"github.com/berth-net/berth/internal/stamp"
)

// ErrLedgerLost says that there are pods of this agent and no ledger that tells
// of them. With an empty one their links would be without an owner, and swept
// away.
var ErrLedgerLost = errors.New("the agent's ledger is lost")

// ErrLedgerOld says that there are pods of this agent that its ledger does not know
// of: an older copy was put in its place. By that one their links would be swept
// away, and their addresses given to others.
var ErrLedgerOld = errors.New("the agent's ledger is older than its pods")

// Open opens the ledger, if it is the one that an agent last wrote here, or begins one. If
// that is refused, the ledger may be open all the same.
func (r *Rebuild) Open() error {
	if err := r.begin(); err != nil {
		return err
	}
	if err := r.OpenLedger(r.ledger); err != nil {
		return r.explain(err)
	}
	return r.refuseOld()
}

// begin sees to it that the state folder is the one that an agent served from last, and that no ledger is begun over pods that an earlier one
// knew of, or beside an agent whose ledger somebody has taken away. One that was
// lost when nothing was left of it, or nothing but what queued deletions name, is
// begun with a quarantine: which addresses rest was lost with it. The first one of a state
// folder says when it was begun.
func (r *Rebuild) begin() error {
	if err := r.refuseOther(); err != nil {
		return err
	}
	if there, err := ledgerThere(r.Root.Ledger()); there || err != nil {
		return err
	}
	if err := r.Alone(); err != nil {
		return err
	}
	if err := r.SameEpoch(); err != nil {
		return err
	}
	links, err := r.node.OwnLinks()
	if err != nil {
		return err
	}
	left, err := r.undoomed(links)
	if err != nil {
		return err
	}
	if len(left) > 0 {
		return fmt.Errorf("%w: %s is missing, and %d links of this agent's pods are here (%s ...): "+
			"put it back, or make it anew from what the kernel tells of them: %s",
			ErrLedgerLost, r.Root.Ledger(), len(left), left[0].Name, r.rebuildCommand())
	}
	if first, yes := r.First(); yes {
		_, err = ledger.Replace(r.ledger, []ledger.Op{ledger.Founded(first)})
		return err
	}
	r.Log.Warn("the ledger was lost, and nothing of its pods is left; addresses rest first", "ledger", r.Root.Ledger())
	_, err = ledger.Replace(r.ledger, []ledger.Op{r.ground.Quarantine()})
	return err
}

// ledgerThere reports whether there is a ledger, damaged or not. An empty file
// is what a crash leaves of one that was about to be made.
func ledgerThere(path string) (bool, error) {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("looking for the ledger: %w", err)
	}
	return info.Size() > 0, nil
}

// refuseOld refuses a ledger that was opened and is not the one that an agent last
// wrote here: there is a pod that it does not know of, or an agent serves with
// another one. A refusal changes nothing. If queued deletions name all such pods, the
// ledger is an older copy all the same, and which addresses rest was lost with the current
// one: all addresses rest first.
func (r *Rebuild) refuseOld() error {
	if err := r.Alone(); err != nil {
		return err
	}
	if was := r.Ledger.Epoch(); r.Moved && was.Boot == r.Boot && daemon.EpochText(was) != r.Epoch {
		return nil // the pods that were here once were given up when the agent moved away
	}
	newer, err := r.unknown(func(id hold.ID) bool { _, ok := r.Ledger.Owner(id); return ok })
	if err != nil || len(newer) == 0 {
		return err
	}
	left, err := r.undoomed(newer)
	if err != nil {
		return err
	}
	if len(left) == 0 {
		r.Log.Warn("the ledger is older than pods whose deletions wait; addresses rest first", "ledger", r.Root.Ledger(), "links", len(newer))
		return r.Ledger.Commit(context.Background(), r.ground.Quarantine())
	}
	return fmt.Errorf("%w: %s does not know of %d links of this agent's pods that are here (%s ...): "+
		"put its current copy in its place, or make it anew from what the kernel tells of them: %s",
		ErrLedgerOld, r.Root.Ledger(), len(left), left[0].Name, r.rebuildCommand())
}

// unknown returns the pods' links that a ledger with these owners ought to know of:
// those of this instance that are whole, as far as others have left them so. An owner is
// on the disk before its link is made, and forgotten when the link has been seen to be
// gone; so one without an owner is that of a pod which a later ledger knew.
func (r *Rebuild) unknown(owned func(hold.ID) bool) ([]rtnl.Link, error) {
	isNew := func(l rtnl.Link) bool {
		id, whole := r.node.WholeOwner(l)
		return whole && !owned(id)
	}
	seen, err := r.node.Links.Whole(context.Background())
	if err != nil && !errors.Is(err, kernel.ErrInterrupted) {
		return nil, fmt.Errorf("looking for the links of this agent's pods: %w", err)
	}
	if err == nil && !slices.ContainsFunc(seen, isNew) {
		return nil, nil
	}
	links, err := r.node.OwnLinks() // that list may have been read before the last agent ended
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(links, func(l rtnl.Link) bool { return !isNew(l) }), nil
}

// undoomed returns the links that no queued deletion is about: the deletions adopt the
// others.
func (r *Rebuild) undoomed(links []rtnl.Link) ([]rtnl.Link, error) {
	return undoomed(links, r.drain.Pending)
}

func undoomed(links []rtnl.Link, queued func() ([]deletions.Entry, error)) ([]rtnl.Link, error) {
	if len(links) == 0 {
		return nil, nil
	}
	pending, err := queued()
	if err != nil {
		return nil, fmt.Errorf("looking for deletions: %w", err)
	}
	doomed := map[string]deletions.Record{}
	for _, e := range pending {
		doomed[e.Record.Link] = e.Record
	}
	var left []rtnl.Link
	for _, l := range links {
		if r, ok := doomed[l.Name]; !ok || stamp.Check(l.Name, l.Alias, r.Key()) != nil {
			left = append(left, l)
		}
	}
	return left, nil
}

// explain adds to the refusal of a damaged ledger what else can be done.
func (r *Rebuild) explain(err error) error {
	var damaged *ledger.DamagedError
	if !errors.As(err, &damaged) {
		return err
	}
	links, look := r.node.OwnLinks()
	if look != nil {
		return errors.Join(err, look)
	}
	return fmt.Errorf("%w: %d links of this agent's pods are here; if there is no intact copy, "+
		"%s sets it aside and adopts them: %w", ErrLedgerLost, len(links), r.rebuildCommand(), err)
}

// rebuildCommand is what an operator types to have the ledger made anew.
func (r *Rebuild) rebuildCommand() string { return rebuildCommand(r.Root) }

func rebuildCommand(dir root.Dir) string {
	if dir == root.Default {
		return "berthd --rebuild-ledger"
	}
	return "berthd --root " + string(dir) + " --rebuild-ledger"
}

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

// ErrLedgerLost says that this agent's pods are here, and no ledger that knows of them. With an
// empty ledger their links would have no owner, and the sweep would remove the links; and others would get the addresses of their macvlans.
var ErrLedgerLost = errors.New("the agent's ledger is lost")

// ErrLedgerOld says that the ledger does not know of some of this agent's pods: an older copy
// was put in its place. By that copy, the sweep would take these pods' links away, and others
// would get their addresses.
var ErrLedgerOld = errors.New("the agent's ledger is older than its pods")

// Open opens the ledger, if it is the one that an agent last wrote here, or begins one if
// there is none. After a refusal the ledger may be open all the same.
func (r *Rebuild) Open() error {
	if err := r.begin(); err != nil {
		return err
	}
	if err := r.OpenLedger(r.ledger); err != nil {
		return r.explain(err)
	}
	return r.refuseOld()
}

// begin makes sure that there is a ledger file. It refuses a state folder that is not the one
// from which an agent served last. If the ledger is missing, begin begins no ledger if an earlier
// ledger knew pods that are still here, or if an agent runs whose ledger somebody has taken away.
// If the lost ledger's pods have left nothing, or only what queued deletions name, it
// begins a ledger with a quarantine, because nobody knows any more which addresses rest. The
// first ledger of a state folder says when it was begun.
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
	links, err := r.ownEnds()
	if err != nil {
		return err
	}
	left, err := r.undoomed(links)
	if err != nil {
		return err
	}
	if len(left) > 0 {
		return fmt.Errorf("%w: %s is missing, but this agent's pods have links on the node (%d, such as %s): "+
			"put the ledger back, or rebuild it from the links: %s",
			ErrLedgerLost, r.Root.Ledger(), len(left), left[0].Name, r.rebuildCommand())
	}
	if first, yes := r.First(); yes {
		_, err = ledger.Replace(r.ledger, []ledger.Op{ledger.Founded(first)})
		return err
	}
	// Queued deletions do not count: without a ledger nothing leads them to a macvlan.
	if inPods := r.node.OwnMacvlans(); len(inPods) > 0 {
		return fmt.Errorf("%w: %s is missing, but this agent's macvlans are in pods (%d, such as that of %s): "+
			"put the ledger back, or rebuild it from the links: %s",
			ErrLedgerLost, r.Root.Ledger(), len(inPods), inPods[0], r.rebuildCommand())
	}
	r.Log.Warn("the ledger was lost, and none of its pods is left; the agent begins a new ledger, and all addresses rest first", "ledger", r.Root.Ledger())
	_, err = ledger.Replace(r.ledger, []ledger.Op{r.ground.Quarantine()})
	return err
}

// ledgerThere reports whether there is a ledger, damaged or not. An empty file is none: a
// crash leaves it when a ledger was about to be made.
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

// refuseOld refuses the opened ledger if it is not the one that an agent last wrote here: a pod
// is here that the ledger does not know of, or an agent serves with another ledger. A refusal changes
// nothing. If queued deletions name all pods that the ledger does not know of, refuseOld accepts the
// ledger. But then it is an older copy, and only the lost ledger said which addresses rest; so all
// addresses rest first.
func (r *Rebuild) refuseOld() error {
	if err := r.Alone(); err != nil {
		return err
	}
	if was := r.Ledger.Epoch(); r.Moved && was.Boot == r.Boot && daemon.EpochText(was) != r.Epoch {
		return nil // the agent gave up the pods here when it once moved away from this namespace
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
		r.Log.Warn("the ledger is older than some pods, all of which have queued deletions; all addresses rest first", "ledger", r.Root.Ledger(), "links", len(newer))
		return r.Ledger.Commit(context.Background(), r.ground.Quarantine())
	}
	return fmt.Errorf("%w: this agent's pods have links on the node that %s does not know of (%d, such as %s): "+
		"put the current ledger in its place, or rebuild it from the links: %s",
		ErrLedgerOld, r.Root.Ledger(), len(left), left[0].Name, r.rebuildCommand())
}

// unknown returns the pods' links that a ledger ought to know and does not know: links of this
// instance that others have left whole, and for whose owner's id the function owned returns false. The
// ledger has an owner on the disk before the owner's link is made, and forgets the owner only after the
// agent saw that the link is gone. So a whole link without an owner belongs to a pod that a later
// ledger knew.
func (r *Rebuild) unknown(owned func(hold.ID) bool) ([]rtnl.Link, error) {
	isNew := func(l rtnl.Link) bool {
		id, whole := r.node.WholeOwner(l)
		return whole && !owned(id)
	}
	seen, err := r.node.Links.Whole(context.Background())
	if err != nil && !errors.Is(err, kernel.ErrInterrupted) {
		return nil, fmt.Errorf("looking for the links of this agent's pods: %w", err)
	}
	ports, look := r.ports()
	if look != nil {
		return nil, look
	}
	ports = slices.DeleteFunc(ports, func(l rtnl.Link) bool {
		id, _ := stamp.EndID(l.Name)
		return owned(id)
	})
	if err == nil && !slices.ContainsFunc(seen, isNew) {
		return ports, nil
	}
	links, err := r.node.OwnLinks() // again, because the list above may have been read before the last agent ended
	if err != nil {
		return nil, err
	}
	return append(slices.DeleteFunc(links, func(l rtnl.Link) bool { return !isNew(l) }), ports...), nil
}

// ports returns this agent's ports of bridges that are whole.
func (r *Rebuild) ports() ([]rtnl.Link, error) {
	if r.node.Bridged == nil {
		return nil, nil
	}
	return r.node.Bridged.Whole()
}

// ownEnds returns the links and the whole ports of this agent's pods.
func (r *Rebuild) ownEnds() ([]rtnl.Link, error) {
	links, err := r.node.OwnLinks()
	if err != nil {
		return nil, err
	}
	ports, err := r.ports()
	return append(links, ports...), err
}

// undoomed returns the links that no queued deletion is about. The deletions adopt the other
// links.
func (r *Rebuild) undoomed(links []rtnl.Link) ([]rtnl.Link, error) {
	return undoomed(links, r.drain.Pending)
}

func undoomed(links []rtnl.Link, queued func() ([]deletions.Entry, error)) ([]rtnl.Link, error) {
	if len(links) == 0 {
		return nil, nil
	}
	pending, err := queued()
	if err != nil {
		return nil, fmt.Errorf("looking for queued deletions: %w", err)
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

// explain adds to the refusal of a damaged ledger that --rebuild-ledger can make it anew.
func (r *Rebuild) explain(err error) error {
	var damaged *ledger.DamagedError
	if !errors.As(err, &damaged) {
		return err
	}
	links, look := r.ownEnds()
	if look != nil {
		return errors.Join(err, look)
	}
	return fmt.Errorf("%w: this agent's pods have links on the node (%d); if there is no intact copy of the ledger, "+
		"%s sets the ledger aside and adopts these pods: %w", ErrLedgerLost, len(links), r.rebuildCommand(), err)
}

// rebuildCommand returns the command that makes the ledger anew.
func (r *Rebuild) rebuildCommand() string { return rebuildCommand(r.Root) }

func rebuildCommand(dir root.Dir) string {
	if dir == root.Default {
		return "berthd --rebuild-ledger"
	}
	return "berthd --root " + string(dir) + " --rebuild-ledger"
}

package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"github.com/berth-net/berth/internal/stamp"

	"github.com/berth-net/berth/internal/deletions"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/kinds/link"
	"github.com/berth-net/berth/internal/ledger"
	"github.com/berth-net/berth/internal/root"
)

// ErrLedgerLost says that there are pods of this agent and no ledger that tells
// of them. With an empty one their links would be without an owner, and swept
// away.
var ErrLedgerLost = errors.New("the agent's ledger is lost")

// ErrLedgerOld says that there are pods of this agent that its ledger does not know
// of: an older copy was put in its place. By that one their links would be swept
// away, and their addresses given to others.
var ErrLedgerOld = errors.New("the agent's ledger is older than its pods")

// beginLedger sees to it that no ledger is begun over pods that an earlier one
// knew of, or beside an agent whose ledger somebody has taken away. One that was
// lost when nothing was left of it, or nothing but what queued deletions name, is
// begun with a quarantine: which addresses rest was lost with it.
func (a *Agent) beginLedger() error {
	if there, err := ledgerThere(a.Root.Ledger()); there || err != nil {
		return err
	}
	if err := a.alone(); err != nil {
		return err
	}
	if err := a.sameEpoch(); err != nil {
		return err
	}
	links, err := a.ownLinks()
	if err != nil {
		return err
	}
	left, err := a.undoomed(links)
	if err != nil {
		return err
	}
	if len(left) > 0 {
		return fmt.Errorf("%w: %s is missing, and %d links of this agent's pods are here (%s ...): "+
			"put it back, or make it anew from what the kernel tells of them: %s",
			ErrLedgerLost, a.Root.Ledger(), len(left), left[0].Name, a.rebuildCommand())
	}
	if a.first {
		return nil
	}
	a.Log.Warn("the ledger was lost, and nothing of its pods is left; addresses rest first", "ledger", a.Root.Ledger())
	_, err = ledger.Replace(a.ledgerOptions(), a.quarantine())
	return err
}

// quarantine lets all addresses rest for as long as any does. Even where none does it
// says since when: a pool may come back.
func (a *Agent) quarantine() []ledger.Op {
	rest := a.ipam.Longest()
	if c := a.config.Load(); len(c.Pools) == 0 {
		rest = c.Cooldown
	}
	now := a.clock.Now()
	return []ledger.Op{ledger.Quarantined(now, now.Add(rest))}
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
// another one. It changes nothing.
func (a *Agent) refuseOld(l *ledger.Ledger) error {
	if err := a.alone(); err != nil {
		return err
	}
	if was := l.Epoch(); a.Moved && was.Boot == a.boot && epochText(was) != a.epoch {
		return nil // the pods that were here once were given up when the agent moved away
	}
	left, err := a.unknown(func(id hold.ID) bool { _, ok := l.Owner(id); return ok })
	if err != nil || len(left) == 0 {
		return err
	}
	return fmt.Errorf("%w: %s does not know of %d links of this agent's pods that are here (%s ...): "+
		"put its current copy in its place, or make it anew from what the kernel tells of them: %s",
		ErrLedgerOld, a.Root.Ledger(), len(left), left[0].Name, a.rebuildCommand())
}

// unknown returns the pods' links that a ledger with these owners ought to know of:
// those of this instance that are whole, as far as others have left them so. An owner is
// on the disk before its link is made, and forgotten when the link has been seen to be
// gone; so one without an owner is that of a pod which a later ledger knew. Links that
// queued deletions name are left out: the deletions adopt them.
func (a *Agent) unknown(owned func(hold.ID) bool) ([]rtnl.Link, error) {
	isNew := func(l rtnl.Link) bool {
		if s, stamped := stamp.Parse(l.Alias); stamped && s.Instance != a.instance {
			return false
		}
		name, _ := link.NameOf(a.instance, a.groups, l)
		id, ours := stamp.LinkID(name)
		return ours && link.IsWhole(a.groups, l) && !owned(id)
	}
	seen, err := a.links.Whole(context.Background())
	if err != nil && !errors.Is(err, kernel.ErrInterrupted) {
		return nil, fmt.Errorf("looking for the links of this agent's pods: %w", err)
	}
	if err == nil && !slices.ContainsFunc(seen, isNew) {
		return nil, nil
	}
	links, err := a.ownLinks() // that list may have been read before the last agent ended
	if err != nil {
		return nil, err
	}
	return a.undoomed(slices.DeleteFunc(links, func(l rtnl.Link) bool { return !isNew(l) }))
}

// ofInstance keeps the links with an instance's stamp, whatever they are called.
func ofInstance(instance string) func(rtnl.Link) (bool, error) {
	groups, err := stamp.GroupsOf(instance)
	return func(l rtnl.Link) (bool, error) {
		_, ours := link.NameOf(instance, groups, l)
		return ours, err
	}
}

// ownLinks lists the links with this instance's stamp, under the names that ADD
// gave them. Of two that claim to be the same the one that is called so is.
func (a *Agent) ownLinks() ([]rtnl.Link, error) {
	all, err := steady(func() ([]rtnl.Link, error) { return a.conn.Veths(ofInstance(a.instance)) })
	if err != nil {
		return nil, fmt.Errorf("looking for the links of this agent's pods: %w", err)
	}
	var links []rtnl.Link
	called := map[string]bool{}
	for _, l := range all {
		called[l.Name] = true
	}
	for _, l := range all {
		name, _ := link.NameOf(a.instance, a.groups, l)
		if name != l.Name && called[name] {
			continue
		}
		called[name] = true
		l.Name = name
		if _, ok := stamp.LinkID(name); ok {
			links = append(links, l)
		}
	}
	return links, nil
}

// undoomed returns the links that no queued deletion is about.
func (a *Agent) undoomed(links []rtnl.Link) ([]rtnl.Link, error) {
	if len(links) == 0 {
		return nil, nil
	}
	pending, err := a.queue.Pending()
	if err != nil {
		return nil, fmt.Errorf("looking for deletions: %w", err)
	}
	doomed := map[string]deletions.Record{}
	for _, e := range pending {
		doomed[e.Record.Link] = e.Record
	}
	var left []rtnl.Link
	for _, l := range links {
		if r, ok := doomed[l.Name]; !ok || stamp.Check(l.Name, l.Alias, keyOfDeletion(r)) != nil {
			left = append(left, l)
		}
	}
	return left, nil
}

// explainDamage adds to the refusal of a damaged ledger what else can be done.
func (a *Agent) explainDamage(err error) error {
	var damaged *ledger.DamagedError
	if !errors.As(err, &damaged) {
		return err
	}
	links, look := a.ownLinks()
	if look != nil {
		return errors.Join(err, look)
	}
	return fmt.Errorf("%w: %d links of this agent's pods are here; if there is no intact copy, "+
		"%s sets it aside and adopts them: %w", ErrLedgerLost, len(links), a.rebuildCommand(), err)
}

// rebuildCommand is what an operator types to have the ledger made anew.
func (a *Agent) rebuildCommand() string {
	if a.Root == root.Default {
		return "berthd --rebuild-ledger"
	}
	return "berthd --root " + string(a.Root) + " --rebuild-ledger"
}

package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"time"

	"github.com/berth-net/berth/internal/boottime"
	"github.com/berth-net/berth/internal/config"
	"github.com/berth-net/berth/internal/engine"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/ipam"
	"github.com/berth-net/berth/internal/ledger"
)

// Open opens what an agent works with: its folders, the kernel, the ledger and
// the views on it. The node is not touched before Restore.
func Open(o Options) (*Agent, error) { return open(o, (*Agent).openKernel, false) }

// open is Open on a kernel that openKernel opens. An agent that is going to watch
// the node listens from here on, before the ledger is read; if that is refused, it
// has listed its links for nothing.
func open(o Options, openKernel func(*Agent) error, watches bool) (*Agent, error) {
	a, err := openNode(o, openKernel)
	if err != nil {
		return nil, err
	}
	if watches {
		a.listen()
	}
	if err := a.openLedger(); err != nil {
		return nil, errors.Join(err, a.queue.Close(), a.closeKernel())
	}
	return a, nil
}

// openNode opens all but the ledger.
func openNode(o Options, openKernel func(*Agent) error) (*Agent, error) {
	one := func() chan struct{} { return make(chan struct{}, 1) }
	a := &Agent{
		Options: o, started: time.Now(), index: newIndex(), keys: newKeys(), rinsing: newRinsing(),
		pools: one(), sweeping: one(), doubted: one(), uncovered: one(),
	}
	a.config.Store(o.Config)
	for _, dir := range []string{o.Root.State(), o.Root.Run()} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, fmt.Errorf("making the agent's folders: %w", err)
		}
	}
	var err error
	if a.ipam, err = ipam.New(o.Config.Pools); err != nil {
		return nil, err
	}
	if err := openKernel(a); err != nil {
		return nil, err
	}
	a.born = a.boottime()
	a.clock = boottime.NewClock(a.wall, a.boottime)
	if err := a.openQueue(); err != nil { // before anything is read of it, so that nothing is missed
		return nil, errors.Join(err, a.closeKernel())
	}
	a.epoch = epochText(thisEpoch(a.boot, a.self))
	return a, nil
}

func (a *Agent) ledgerOptions() ledger.Options {
	return ledger.Options{
		Path: a.Root.Ledger(), Kinds: a.kinds(), Rest: a.cooldown, Applied: a.applied, Clock: a.clock, Boot: a.boot,
	}
}

// cooldown returns how long a name that is freed now must rest. Of an address whose
// pool is not known any more, such as one of a ledger that an older version wrote, it
// is as long as any pool is likely to have said: it may be given by another agent,
// with other pools.
func (a *Agent) cooldown(n hold.Name) time.Duration {
	if rest, known := a.ipam.Cooldown(n); known {
		return rest
	}
	return max(a.ipam.Longest(), a.config.Load().Cooldown, config.DefaultCooldown)
}

// openLedger opens the ledger, enters this epoch, and builds the views.
func (a *Agent) openLedger() error {
	if err := a.refuseOther(); err != nil {
		return err
	}
	if err := a.beginLedger(); err != nil {
		return err
	}
	l, err := ledger.Open(a.ledgerOptions())
	if err != nil {
		return a.explainDamage(err)
	}
	a.ledger = l
	if a.opened, err = os.Stat(a.Root.Ledger()); err != nil {
		return errors.Join(err, l.Close())
	}
	if err := a.refuseOld(l); err != nil {
		return errors.Join(err, l.Close())
	}
	err = enterEpoch(l, thisEpoch(a.boot, a.self), a.Root, a.instance, a.Moved)
	if err == nil {
		err = a.restoreViews()
	}
	if err == nil { // before whoever has the table verifies it
		err = a.egress.SetRuleset(a.ruleset())
	}
	if err != nil {
		return errors.Join(err, l.Close())
	}
	var el engine.Ledger = l
	kinds := a.kinds()
	if a.Decorate != nil {
		el, kinds = a.Decorate(l, kinds)
	}
	a.engine = engine.New(engine.Options{
		Ledger: el, Kinds: kinds, Clock: a.clock, Event: a.event, Observe: a.Observe, Homeless: a.homeless, Going: a.going,
	})
	return nil
}

// homeless reports whether an owner lived in an epoch that is over: after a
// reboot a path, and even an inode, may be another pod's.
func (a *Agent) homeless(o hold.Owner) bool {
	e := a.index.get(o.ID)
	return e != nil && e.record.Epoch != a.epoch
}

// restoreViews fills the index and the pools from the ledger.
func (a *Agent) restoreViews() error {
	first := map[netip.Prefix]time.Duration{}
	for _, h := range a.heldCIDRs() { // which may be out of the config, and in use
		a.ipam.Drain(h.pool, h.cidr, h.cooldown)
		if h.first != ipam.Unknown {
			first[h.cidr] = h.first
		}
	}
	var claimed []netip.Addr
	for _, o := range a.ledger.Owners() {
		if err := a.index.apply(ledger.Edit{After: &o}); err != nil {
			return err
		}
		for _, n := range o.Names {
			if addr, err := ipam.ParseName(n); err == nil {
				claimed = append(claimed, addr)
			}
		}
	}
	var rests []ipam.Resting
	for _, r := range a.ledger.Resting() {
		if addr, err := ipam.ParseName(r.Name); err == nil {
			rests = append(rests, ipam.Resting{Addr: addr, Until: r.Until})
		}
	}
	a.ipam.Restore(claimed, rests)
	q := a.ledger.Quarantine()
	a.ipam.Quarantine(q.Since, q.Until, first)
	return nil
}

// Restore brings the node to what the ledger says: all of it, before it returns.
func (a *Agent) Restore(ctx context.Context) error {
	mend, err := a.resume(ctx)
	if err == nil {
		mend(ctx)
	}
	return err
}

// resume is what an agent does before it serves anybody: it takes what it holds
// itself, does the deletions that wait, cuts off again who is being released, and
// releases whose home has ended. What attached pods lack is for mend, beside the
// verbs: pods have a say in how long that takes. What could not be put right is no
// reason not to serve, least of all deletions: it is logged, and the sweep tries
// again.
func (a *Agent) resume(ctx context.Context) (mend func(context.Context), err error) {
	if err := a.keepTable(ctx); err != nil {
		a.Log.Warn("telling the nftables table what should be in it", "err", err)
	}
	if a.uplinkMTU, err = a.conn.UplinkMTU(); err != nil {
		a.Log.Warn("looking for the uplink's MTU", "err", err)
	}
	own := a.repairNode(ctx) // first: cuts rely on the table
	if own != nil {
		a.Log.Warn("restoring what the agent itself holds", "err", own)
	}
	if err := a.drain(ctx); err != nil { // before the restore would set up again what was cut off
		a.Log.Error("deletions wait", "err", err)
	}
	missing, err := a.engine.Resume(ctx, hold.Glance()) // what changes from the list on is heard
	if err != nil {
		a.Log.Warn("restoring", "err", err)
	}
	a.doubt.Store(own != nil || err != nil)
	a.keepNode(ctx)
	return func(ctx context.Context) {
		if err := a.engine.Mend(ctx, missing); err != nil && ctx.Err() == nil {
			a.doubt.Store(true)
			a.Log.Warn("restoring what pods lack", "err", err)
		}
	}, nil
}

// repairNode takes again what the agent itself lacks of what it holds. What hangs is
// left to keepNode, and then to the sweep: deletions wait for it no longer.
func (a *Agent) repairNode(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*holding)
	defer cancel()
	return a.engine.Repair(ctx, a.nodeOwners()...)
}

// nodeOwners returns the owners that the agent itself is: of its table, and of its
// pools' CIDRs.
func (a *Agent) nodeOwners() []hold.ID {
	var ids []hold.ID
	if id, held := a.ledger.Holder(egressName); held {
		ids = append(ids, id)
	}
	for _, h := range a.heldCIDRs() {
		ids = append(ids, h.owner)
	}
	return ids
}

// keepNode takes what the node needs, and gives back what it needs no more.
func (a *Agent) keepNode(ctx context.Context) {
	select {
	case a.pools <- struct{}{}:
		defer func() { <-a.pools }()
	case <-ctx.Done():
		return
	}
	if err := a.holdNode(ctx); err != nil {
		a.Log.Warn("taking what the node needs", "err", err)
	}
	if err := a.giveBack(ctx); err != nil {
		a.Log.Warn("giving back drained pools", "err", err)
	}
}

package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/ipam"
	"github.com/berth-net/berth/internal/kinds/egress"
	"github.com/berth-net/berth/internal/kinds/poolroute"
	"github.com/berth-net/berth/internal/ledger"
)

// What the agent itself holds is in the ledger like everything else: an owner
// for its nftables table, and one for each CIDR of a pool.

// nodeRecord is the Owner.Meta of these owners.
type nodeRecord struct {
	Sort     string `json:"sort"` // "egress" or "pool"
	Pool     string `json:"pool,omitempty"`
	Cooldown string `json:"cooldown,omitempty"` // what the pool says, "1m5s"; "": not known
	First    string `json:"first,omitempty"`    // what it said first since the ledger was lost; "": not lost
}

const (
	egressSort = "egress"
	poolSort   = "pool"
)

var egressName = hold.Name{Space: "agent", Name: "egress"}

func cidrName(p netip.Prefix) hold.Name { return hold.Name{Space: "cidr", Name: p.String()} }

// holdNode takes what the agent itself needs and does not have yet. What it
// cannot take keeps it from attaching pods (see equipped), but not from
// detaching them.
func (a *Agent) holdNode(ctx context.Context) error {
	table := a.holdOne(ctx, nodeRecord{Sort: egressSort}, egressName, &egress.Spec{Instance: a.instance})
	if table == nil {
		table = a.keepTable(ctx)
	}
	all := errors.Join(a.forwarding(), table)
	lack := map[string]error{everyPool: all}
	for pool, err := range a.holdCIDRs(ctx) {
		lack[pool] = err
		all = errors.Join(all, err)
	}
	if ctx.Err() == nil { // or what is missing may be no more than time
		a.lack.Store(&lack)
	}
	return all
}

// holdCIDRs takes the CIDRs of all pools, beside each other: however many hang, it
// takes no longer than for one. It returns what failed, by pool.
func (a *Agent) holdCIDRs(ctx context.Context) map[string]error {
	var mu sync.Mutex
	failed := map[string]error{}
	var all sync.WaitGroup
	for _, pool := range a.config.Load().Pools {
		for _, cidr := range pool.CIDRs {
			all.Go(func() {
				spec := &poolroute.Spec{CIDR: cidr, Metric: a.metric}
				rec := nodeRecord{Sort: poolSort, Pool: pool.Name, Cooldown: pool.Cooldown.String()}
				if first, lost := a.ipam.First(cidr); lost {
					rec.First = first.String()
				}
				if err := a.holdOne(ctx, rec, cidrName(cidr), spec); err != nil {
					mu.Lock()
					defer mu.Unlock()
					failed[pool.Name] = errors.Join(failed[pool.Name], err)
				}
			})
		}
	}
	all.Wait()
	return failed
}

// everyPool stands for what the pods of all pools need. No pool has this name.
const everyPool = ""

// equipped refuses a pool for whose pods the node has not what they need, such
// as the table by which they are cut off, or their CIDR's unreachable route.
func (a *Agent) equipped(pool string) error {
	lack := a.lack.Load()
	if lack == nil {
		return nil // of an agent that was not restored: it serves nobody
	}
	return errors.Join(a.spared(), (*lack)[everyPool], (*lack)[pool])
}

const (
	// formerHolder is how long holdOne waits for a former owner to be gone.
	formerHolder = 10 * time.Second
	// holding is how long it waits for a kind to take one thing, or to look at it.
	holding = 5 * time.Second
)

// holdOne takes one thing, unless an owner has it already; if that is in doubt,
// it is looked at, and what is new in its record is written down. One that is on its
// way out, such as of a CIDR that left the config and is back, is waited for.
func (a *Agent) holdOne(ctx context.Context, rec nodeRecord, name hold.Name, spec hold.Spec) error {
	if id, held := a.ledger.Holder(name); held {
		if o, ok := a.ledger.Owner(id); ok && o.Wanted() {
			if a.engine.Taking(id) || a.engine.Doomed(id) { // in the ledger alone
				return fmt.Errorf("taking %s: an earlier try has not ended, or its release is not promised yet", spec)
			}
			same, doubt := sameRecord(o, rec), a.doubt.Load()
			if same && !doubt {
				return nil
			}
			return a.aside(ctx, spec.String(), func(ctx context.Context) error {
				var err error
				if !same {
					err = a.amend(ctx, id, rec)
				}
				if doubt {
					err = errors.Join(err, a.engine.Repair(ctx, id))
				}
				return err
			})
		}
		waiting, cancel := context.WithTimeout(ctx, formerHolder)
		defer cancel()
		if err := a.engine.Wait(waiting, id); err != nil {
			return fmt.Errorf("waiting for the former owner %s of %s to go: %w", id, spec, err)
		}
	}
	return a.aside(ctx, spec.String(), func(ctx context.Context) error {
		return a.engine.Take(ctx, nodeOwner(rec, name, spec))
	})
}

// aside does something that may not hear of its context's end, and waits for it for
// no longer than holding: a start, a sweep and a new configuration go on without it.
// It is not begun anew before it has ended.
func (a *Agent) aside(ctx context.Context, what string, do func(context.Context) error) error {
	if _, goesOn := a.hanging.LoadOrStore(what, nil); goesOn {
		return fmt.Errorf("taking %s: an earlier try has not ended", what)
	}
	ctx, cancel := context.WithTimeout(ctx, holding)
	defer cancel()
	done := make(chan error, 1)
	go func() {
		err := do(ctx)
		a.hanging.Delete(what)
		done <- err
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("taking %s: %w", what, context.Cause(ctx))
	}
}

// sameRecord reports whether an owner of the agent's own has a record.
func sameRecord(o hold.Owner, rec nodeRecord) bool {
	var have nodeRecord
	return json.Unmarshal(o.Meta, &have) == nil && have == rec
}

// amend gives an owner of the agent's own another record: once the CIDR is out of the
// configuration, nothing else tells how long its addresses rest.
func (a *Agent) amend(ctx context.Context, id hold.ID, rec nodeRecord) error {
	err := a.engine.Ledger.Commit(ctx, ledger.Update(id, func(o *hold.Owner) error {
		o.Meta = rec.encode()
		return nil
	}))
	if err != nil {
		return fmt.Errorf("writing down the cooldown of pool %s: %w", rec.Pool, err)
	}
	return nil
}

// encode returns the record as Owner.Meta.
func (r nodeRecord) encode() json.RawMessage {
	meta, err := json.Marshal(r)
	if err != nil {
		panic(fmt.Sprintf("agent: encoding a node record: %v", err)) // of plain strings
	}
	return meta
}

func nodeOwner(rec nodeRecord, name hold.Name, spec hold.Spec) hold.Owner {
	id := hold.NewID()
	return hold.Owner{ID: id, Meta: rec.encode(), Names: []hold.Name{name}, Holds: []hold.Hold{{Owner: id, Spec: spec}}}
}

// heldCIDR is a pool's CIDR that the ledger has, in the config or not.
type heldCIDR struct {
	owner    hold.ID
	pool     string
	cidr     netip.Prefix
	cooldown time.Duration // what the pool said last, or ipam.Unknown
	first    time.Duration // what it said first since the ledger was lost, as far as that is known, or ipam.Unknown
}

func (a *Agent) heldCIDRs() []heldCIDR {
	var held []heldCIDR
	for _, o := range a.ledger.Owners() {
		var rec nodeRecord
		cidrs := o.NamesIn("cidr") // asked first: attachments, of which there are many, have none
		if len(cidrs) == 0 || !o.Wanted() || json.Unmarshal(o.Meta, &rec) != nil || rec.Sort != poolSort {
			continue
		}
		cooldown, err := time.ParseDuration(rec.Cooldown)
		if err != nil { // of an older version, or rebuilt
			cooldown = ipam.Unknown
		}
		first, err := time.ParseDuration(rec.First)
		if err != nil {
			first = cooldown
		}
		for _, name := range cidrs {
			if p, err := netip.ParsePrefix(name); err == nil {
				held = append(held, heldCIDR{o.ID, rec.Pool, p, cooldown, first})
			}
		}
	}
	return held
}

// giveBack gives back the CIDRs that are out of the config and out of use. Which
// these are is what the ledger has and IPAM has not: IPAM tells of each only once,
// and a release that could not be promised has to be tried again.
func (a *Agent) giveBack(ctx context.Context) error {
	now := a.clock.Now()
	_ = a.ipam.Drained(now) // forgets them
	used := map[netip.Prefix]bool{}
	for _, p := range a.ipam.Stats(now) {
		for _, c := range p.CIDRs {
			used[c.CIDR] = true
		}
	}
	var done []hold.ID
	for _, h := range a.heldCIDRs() {
		if !used[h.cidr] {
			done = append(done, h.owner)
		}
	}
	if len(done) == 0 {
		return nil
	}
	return errors.Join(a.engine.Release(ctx, done), a.keepTable(ctx))
}

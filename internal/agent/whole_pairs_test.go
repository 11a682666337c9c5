package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/daemon/server"
	"github.com/berth-net/berth/internal/deletions"
	"github.com/berth-net/berth/internal/fault"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/ipam"
	"github.com/berth-net/berth/internal/node/nodetest"
	"github.com/berth-net/berth/internal/stamp"
)

// This file has the steps of two halves: an operation fails or hangs, and somebody comes in between.

// sicknesses lists the possible ails. The more often the list has an ail, the more often the script
// chooses it.
var sicknesses = []ail{
	{op: "cut", kind: "link", times: 1}, {op: "cut", kind: "link", times: 1},
	{op: "cut", kind: "link", times: 2}, {op: "cut", kind: "link", hangs: true},
	{op: "release", kind: "link"}, {op: "release", kind: "link", hangs: true}, {op: "release", kind: "link", hangs: true, deaf: true},
	{op: "cut", kind: "link", hangs: true, deaf: true},
	{op: "release", kind: "flows"}, {op: "release", kind: "flows"}, {op: "release", kind: "flows"},
	{op: "release", kind: "flows", hangs: true}, {op: "release", kind: "flows", hangs: true, deaf: true},
	{op: "acquire", kind: "link", times: 1, then: &ail{op: "commit", c: -1}}, {op: "acquire", kind: "link", times: 1, then: &ail{op: "commit", c: -1}},
	{op: "acquire", kind: "link", times: 1}, {op: "acquire", kind: "link", hangs: true}, {op: "acquire", kind: "link", hangs: true, deaf: true},
	{op: "acquire", kind: "flows", times: 1},
	{op: "verify", kind: "link", hangs: true}, {op: "verify", kind: "flows", hangs: true, deaf: true},
	{op: "verify", kind: "egress", hangs: true, deaf: true}, {op: "verify", kind: "poolroute", hangs: true},
	{op: "find", kind: "link", hangs: true, deaf: true}, {op: "find", kind: "poolroute", hangs: true}, {op: "find", kind: "egress"},
	{op: "commit", times: 1}, {op: "commit", times: 2}, {op: "commit"}, {op: "commit"},
}

// fallIll lets something ail, for a moment or for longer than a cooldown.
func (r *wholeRun) fallIll(s wholeStep) {
	x := sicknesses[s.n%len(sicknesses)]
	x.c = s.c
	if way := s.n / len(sicknesses); x.op == "find" || x.op == "commit" || way%4 == 0 {
		x.c = -1
	}
	lasting := []time.Duration{time.Second, 15 * time.Second, 2 * wholeCooldown, 4 * wholeCooldown}[s.n>>8%4]
	if x.op == "commit" && x.times == 0 { // the disk is full
		lasting = min(lasting, 15*time.Second)
	}
	r.note("it ails for %s: %s", lasting, &x)
	r.ails.begin(&x, lasting)
}

// cure ends all faults and ails.
func (r *wholeRun) cure() {
	r.plan.Heal()
	r.ails.heal(false)
}

// spotless reports whether no operation has failed in this life, and none has ailed since all was well.
func (r *wholeRun) spotless() bool {
	ailed, _ := r.ails.any()
	return !ailed && r.plan.Surfaced() == ""
}

// How long a verb may take whatever hangs: prompt, if the verb needs nothing that ails; else patient.
const (
	prompt  = 6 * time.Second // a GC waits for first tries
	patient = 75 * time.Second
)

// timed fails the run if a verb has taken too long. An operation that ignores the end of its
// context may keep the verbs that need it.
func (r *wholeRun) timed(s wholeStep, began time.Time, most time.Duration) {
	if took := time.Since(began); took > most && !r.dead() {
		if _, deafly := r.ails.any(); deafly && most >= patient {
			return
		}
		r.fail("%s took %s", s, took)
	}
}

// swift returns how long an ADD may take. No owed hold keeps an ADD waiting, except a link; nor
// does a look that hangs.
func (r *wholeRun) swift() time.Duration {
	slow := r.plan.Surfaced() != ""
	for _, op := range []string{"acquire", "cut", "commit", "verify"} {
		slow = slow || r.ails.lately(op, "")
	}
	if slow || r.ails.lately("release", "link") {
		return patient
	}
	return prompt
}

// doAgain sends a DEL two or three times at once, as a runtime repeats a DEL that nobody has answered.
func (r *wholeRun) doAgain(s wholeStep) bool {
	r.leave(s.c)
	var all sync.WaitGroup
	for i := range 2 + s.n%2 {
		when := r.when()
		all.Go(func() {
			time.Sleep(time.Duration(s.n>>3%64*i) * time.Millisecond)
			ctx, cancel := r.patience()
			defer cancel()
			_, _, err := r.Delete(ctx, wholeKey(s.c), s.n>>2&1 == 1, when)
			r.note("DEL of c%d, the %dth at once: %v", s.c, i+1, err)
		})
	}
	all.Wait()
	return r.insistDelete(s.c, s.n)
}

// doBulk deletes several containers at once, and repeats each DEL until the agent promises the deletion.
// Some of the cuts may fail.
func (r *wholeRun) doBulk(s wholeStep) bool {
	if s.n&3 != 0 {
		r.ails.begin(&ail{op: "cut", kind: "link", c: -1, times: 1 + s.n>>2%4}, wholeCooldown)
	}
	done := make([]bool, len(s.cs))
	var all sync.WaitGroup
	for i, c := range s.cs {
		all.Go(func() { done[i] = r.insistDelete(c, s.n>>i&^2) })
	}
	all.Wait()
	return !slices.Contains(done, false)
}

// doLateQueued executes an ADD that a queued deletion has overtaken. The agent is already releasing
// the ADD's container, and the first try of the queued deletion may fail.
func (r *wholeRun) doLateQueued(s wholeStep) bool {
	if s.n&1 == 0 { // so that the container's owner stays for a while
		r.ails.begin(&ail{op: "release", kind: "flows", c: s.c}, 10*time.Second)
	}
	if !r.insistDelete(s.c, 0) {
		return false
	}
	early := r.when()
	switch s.n >> 1 % 3 {
	case 0:
		r.ails.begin(&ail{op: "commit", c: -1, times: 2}, time.Second)
	case 1:
		r.ails.begin(&ail{op: "commit", c: -1, times: 4}, time.Second)
	}
	key := wholeKey(s.c)
	rec := deletions.Record{
		Network: key.Network, Container: key.Container, Ifname: key.Ifname,
		Netns: r.pods[s.pod].Ref().Path, Boot: r.world.Boot(), Started: r.when().Started,
	}
	if err := deletions.Write(r.root, rec); err != nil {
		r.fail("writing the deletion of c%d: %v", s.c, err)
		return true
	}
	ctx, cancel := context.WithTimeout(r.ctx, time.Duration(s.n>>4%3)*time.Millisecond) // at 0 ms, this context has ended at once
	err := r.drain.All(ctx)
	cancel()
	r.note("drain: %v", err)
	r.ails.heal(false)
	r.world.Notice()
	if r.dead() {
		return false
	}
	if r.world.Boottime() > early.Started+int64(server.MaxDeadline) {
		return true
	}
	ctx, cancel = r.patience()
	defer cancel()
	raw, err := r.Add(ctx, r.ask(s, r.pods[s.pod].Ref(), ""), early)
	if err == nil && !r.dead() {
		r.fail("an ADD of c%d that is older than its queued deletion answers %s", s.c, raw)
	}
	return !r.dead()
}

// doHurried is a drain, a deletion or a sweep whose context ends at some moment.
func (r *wholeRun) doHurried(s wholeStep) {
	ctx, cancel := context.WithTimeout(r.ctx, time.Duration(s.n>>2%4)*40*time.Millisecond)
	defer cancel()
	switch s.n % 3 {
	case 0:
		_ = r.drain.All(ctx)
	case 1:
		_, _, _ = r.Delete(ctx, api.Filter{Network: "net", Container: "none", Ifname: "eth0"}, false, r.when())
	case 2:
		r.Sweep(ctx)
	}
}

// doAdopt deletes a pod of which the ledger knows nothing, two to four times at once: by the queue,
// and by the API.
func (r *wholeRun) doAdopt(s wholeStep) bool {
	id, w := hold.NewID(), r.world
	key := keyFor(s.c)
	var addrs []netip.Addr
	for _, pattern := range []string{"10.88.0.%d", "fd00:88::%x"} {
		a := netip.MustParseAddr(fmt.Sprintf(pattern, 2+s.n%60))
		if _, held := r.core.Ledger.Holder(ipam.Name(a)); !held {
			addrs = append(addrs, a)
		}
	}
	name := "b" + r.core.Instance[:4] + string(id)
	w.Put(nodetest.Link{
		Name: name, Alias: stamp.Alias(r.core.Instance, id, key, 0), Group: r.node.Groups.Live(), Ifname: "eth0",
	}, addrs...)
	rec := deletions.Record{
		Network: key.Network, Container: key.ContainerID, Ifname: key.Ifname, Link: name, Cut: true,
		Boot: w.Boot(), Started: r.when().Started,
	}
	for _, a := range addrs {
		rec.Addresses = append(rec.Addresses, a.String())
	}
	var all sync.WaitGroup
	for i := range 2 + s.n>>6%3 {
		if err := deletions.Write(r.root, rec); err != nil {
			r.fail("writing the deletion of c%d: %v", s.c, err)
		}
		all.Go(func() {
			ctx, cancel := r.patience()
			defer cancel()
			if i < 2 {
				_ = r.drain.All(ctx)
				return
			}
			f := wholeKey(s.c)
			f.Link = name
			_, _, _ = r.Delete(ctx, f, false, r.when())
		})
	}
	all.Wait()
	w.Notice()
	return r.insistDelete(s.c, 0)
}

// doLose takes the ledger away, when all has settled. Either the only pods that are left have
// queued deletions: then the agent begins another ledger. Or the ledger is made anew from what
// the kernel tells.
func (r *wholeRun) doLose(s wholeStep) {
	r.rest()
	if r.failure != "" {
		return
	}
	r.finish()
	r.replays = nil // the new ledger knows no replay that is older than the ledger
	for _, c := range s.cs {
		if r.stands(c) != nil {
			r.pluginDelete(c, 5)
		}
	}
	r.replays = nil
	if err := os.Remove(r.root.Ledger()); err != nil {
		r.fail("losing the ledger: %v", err)
	}
	if len(r.standing) > 0 {
		if err := r.makeAnew(); err != nil {
			r.fail("making the ledger anew: %v", err)
			return
		}
	}
	r.mu.Lock()
	for _, b := range r.standing {
		b.anew = true
		r.podless[b.id] = true
	}
	r.mu.Unlock()
	r.note("the ledger was lost; %d stand", len(r.standing))
	r.live(true)
}

// makeAnew is RebuildLedger on a node in memory.
func (r *wholeRun) makeAnew() error {
	well := fault.New(1, fault.FailBefore)
	well.Heal()
	a, err := openRooms(r.options(), r.world.Open(well, r.linkRules))
	if err != nil {
		return err
	}
	_, err = a.rebuild.Anew(context.Background())
	return errors.Join(err, a.Close())
}

// ruleNames compares what the pools say is in use with the ledger.
func (r *wholeRun) ruleNames() {
	used := 0
	for _, p := range r.ground.Pools.Stats(r.core.Clock.Now()) {
		for _, c := range p.CIDRs {
			used += c.Used
		}
	}
	named, loose := 0, []string(nil)
	for _, o := range r.core.Ledger.Owners() {
		for _, n := range o.Names {
			addr, err := ipam.ParseName(n)
			if err != nil {
				continue
			}
			if r.ground.Pools.PoolOf(addr) != "" { // there are figures only of addresses of a pool
				named++
			}
			if len(r.ground.Pools.Adopt([]netip.Addr{addr}, r.core.Clock.Now())) > 0 { // Adopt returns the address if nobody has it in use
				loose = append(loose, fmt.Sprintf("%s of %s", addr, o.ID))
			}
		}
	}
	if used != named || len(loose) > 0 {
		r.fail("%d addresses are in use, and the ledger knows of %d; of these could be given out again: %s", used, named, strings.Join(loose, ", "))
	}
}

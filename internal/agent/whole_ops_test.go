package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing/synctest"
	"time"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/attachment"
	"github.com/berth-net/berth/internal/config"
	"github.com/berth-net/berth/internal/daemon/server"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/node/nodetest"
	"github.com/berth-net/berth/internal/stamp"
)

// mostTries is how often a step is tried at most, once its faults have been healed.
const mostTries = 10

// mostRests is how often an ADD waits for free addresses, each time for a cooldown. After the third
// wait the run heals the faults. The engine may then try a release again only a minute later
// (engine.Options.MaxBackoff), and then the released address rests: this takes four more waits.
const mostRests = 8

// wholeSweeps is how long after a sweep the agent makes the next one.
const wholeSweeps = 10 * time.Second

// wholeCooldown is how long addresses rest.
const wholeCooldown = 20 * time.Second

// do takes one step, and repeats a step that fails. It reports whether the step is done: a step is not
// done if the agent has died.
func (r *wholeRun) do(s wholeStep) bool {
	r.note("%s", s)
	r.mu.Lock()
	r.sum.done[s.verb]++
	r.mu.Unlock()
	switch s.verb {
	case "ail": // insist has done this step, before the others of its wave
	case "add", "add exact", "move", "repeat":
		return r.doAdd(s)
	case "taken":
		return r.refused(s, r.pods[s.pod].Ref(), 101)
	case "no pool":
		s.pool = "none"
		return r.refused(s, r.pods[s.pod].Ref(), 7)
	case "no netns":
		return r.refused(s, ns.Ref{Path: "/run/netns/none", Dev: 4, Ino: 1, ID: 1}, 102)
	case "late add":
		return r.doLateAdd(s)
	case "race":
		return r.doRace(s)
	case "twins":
		return r.doTwins(s)
	case "delete", "delete unknown":
		return r.insistDelete(s.c, s.n)
	case "late delete":
		return r.doLateDelete(s)
	case "gc":
		return r.doGC(s)
	case "check":
		return r.doCheck(s)
	case "status":
		return r.doStatus()
	case "sweep":
		began := time.Now()
		r.Sweep(r.ctx)
		r.timed(s, began, 2*patient) // the sweep may have waited for another sweep
	case "again":
		return r.doAgain(s)
	case "bulk":
		return r.doBulk(s)
	case "late queued":
		return r.doLateQueued(s)
	case "adopt":
		return r.doAdopt(s)
	case "hurried":
		r.doHurried(s)
	case "lose":
		r.doLose(s)
	case "tick":
		time.Sleep(time.Duration(s.n) * wholeCooldown / (1 << 15))
	case "set clock":
		r.setClock(s.n)
	case "reload":
		return r.doReload()
	case "restart":
		r.restart(true)
	case "hung":
		r.pluginDelete(s.c, s.n)
	case "race queued":
		return r.doRaceQueued(s)
	case "away", "replay", "garbage", "reboot", "moved":
		r.doAway(s)
	default:
		r.disturb(s)
	}
	return true
}

// setClock sets the wall clock forward or back, by less than a cooldown or more.
func (r *wholeRun) setClock(way int) {
	by := []time.Duration{wholeCooldown / 2, 3 * wholeCooldown, 24 * time.Hour}[way%3]
	if way/3%2 == 0 {
		by = -by
	}
	r.world.SetClock(by)
}

// when returns the time of a new request. No two requests have the same time.
func (r *wholeRun) when() server.When {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.started = max(r.started+1, r.world.Boottime())
	return server.When{Started: r.started, Deadline: r.started + int64(time.Minute)}
}

// patience is how long a runtime waits for an answer.
func (r *wholeRun) patience() (context.Context, context.CancelFunc) {
	return context.WithTimeout(r.ctx, 30*time.Second)
}

func wholeKey(c int) api.Filter {
	return api.Filter{Network: "net", Container: fmt.Sprintf("c%d", c), Ifname: "eth0"}
}

// wholeRate returns the model's limit of what a container receives, in bits a second; 0: no limit.
func wholeRate(c int) uint64 {
	if c%2 > 0 {
		return 0
	}
	return 1_000_000 * uint64(c+1)
}

// ask makes a container's ADD or CHECK. A third of the containers ask for host ports, which
// differ from one network namespace to the next, and half of them for limits of bandwidth.
func (r *wholeRun) ask(s wholeStep, at ns.Ref, more string) api.AddRequest {
	var wishes []string
	if s.c%3 == 0 && at.ID != 0 {
		wishes = append(wishes, fmt.Sprintf(`"portMappings":[{"hostPort":%[1]d,"containerPort":80},{"hostPort":%[1]d,"containerPort":53,"protocol":"udp"}]`,
			1000+at.ID%1000*60+uint64(s.c)))
	}
	if s.c%2 == 0 {
		wishes = append(wishes, fmt.Sprintf(`"bandwidth":{"ingressRate":%d,"ingressBurst":1000000,"egressRate":8000000,"egressBurst":1000000}`, wholeRate(s.c)))
	}
	pool := s.pool
	if s.verb == "add exact" {
		pool, more = "exact", ""
		wishes = append(wishes, fmt.Sprintf(`"ips":["10.87.0.%d"]`, s.n+1))
	}
	conf := fmt.Sprintf(`{"cniVersion":"1.1.0","name":"net","type":"berth-cni","pool":%q,"runtimeConfig":{%s}%s}`, pool, strings.Join(wishes, ","), more)
	return api.AddRequest{
		ContainerID: fmt.Sprintf("c%d", s.c), Ifname: "eth0", Netns: api.Netns(at), Config: json.RawMessage(conf),
		Args: fmt.Sprintf("K8S_POD_NAMESPACE=model;K8S_POD_NAME=pod-c%d", s.c),
	}
}

// stands returns the attachment of a container, or nil.
func (r *wholeRun) stands(c int) *stay {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.standing[c]
}

// leave notes that nobody may rely on a container's attachment from now on.
func (r *wholeRun) leave(c int) *stay {
	r.mu.Lock()
	defer r.mu.Unlock()
	b := r.standing[c]
	delete(r.standing, c)
	r.unsure[c] = true
	return b
}

func (r *wholeRun) doAdd(s wholeStep) bool {
	pod := r.pods[s.pod]
	var former *stay
	for try := 0; ; try++ {
		if s.verb != "repeat" {
			if b := r.leave(s.c); b != nil {
				former = b
			}
		}
		ctx, cancel := r.patience()
		most, began := r.swift(), time.Now()
		known := r.index.Key(keyFor(s.c))
		raw, err := r.Add(ctx, r.ask(s, pod.Ref(), ""), r.when())
		cancel()
		r.timed(s, began, max(most, r.swift()))
		if err != nil {
			r.refuse(s.c, known)
			if s.n>>8&1 == 0 {
				r.Sweep(r.ctx)
			}
		}
		r.note("ADD of c%d to pod %d, try %d: %s, %v", s.c, s.pod, try, raw, err)
		switch {
		case err == nil:
			r.attach(s.c, pod, raw)
			if former != nil && try == 0 { // at a later try, the cut of former may have failed
				r.promise(former)
			}
			return true
		case r.dead():
			return false
		case (isCode(err, 100) || isCode(err, 101) || isCode(err, 11)) && try < mostRests && s.verb != "repeat":
			// All addresses are in use or rest, or a pod that ended has the wished address.
			time.Sleep(wholeCooldown)
			r.Sweep(r.ctx)
		case r.spotless() || try > mostTries:
			r.fail("ADD of c%d to pod %d: %v", s.c, s.pod, err)
			return true
		}
		if try >= 2 {
			r.cure()
		}
		// A runtime may send a DEL before it repeats the ADD. It must do so if it asks for an address
		// that the container itself has in another pod.
		if (s.n>>try&1 == 0 || try > 3) && s.verb != "repeat" && !r.insistDelete(s.c, s.n) {
			return false
		}
	}
}

// attach notes the result of an ADD.
func (r *wholeRun) attach(c int, pod *nodetest.Pod, raw json.RawMessage) {
	list := r.index.Key(keyFor(c))
	list = slices.DeleteFunc(list, func(e *attachment.Entry) bool { return !e.Owner.Wanted() })
	if len(list) != 1 {
		r.fail("c%d is attached, and its list is %v", c, list)
		return
	}
	b := &stay{id: list[0].Owner.ID, raw: string(raw), pod: pod, started: list[0].Record.Started}
	h, _ := list[0].Owner.Find("link")
	b.link, b.addrs = linkOf(h).Name, linkOf(h).Addresses
	if len(b.addrs) != 2 || !strings.Contains(b.raw, b.link) || !strings.Contains(b.raw, b.addrs[0].String()) || !strings.Contains(b.raw, b.addrs[1].String()) {
		r.fail("c%d has %v by %s, its result is %s", c, b.addrs, b.link, raw)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.unsure, c)
	if was := r.standing[c]; was != nil {
		if was.raw != b.raw || was.id != b.id {
			defer r.fail("ADD of c%d again answers\n%s\nand before\n%s", c, b.raw, was.raw)
		}
	}
	r.standing[c] = b
	if !slices.Contains(r.results[c], b.link) {
		r.results[c] = append(r.results[c], b.link)
	}
}

// kept returns the link that a DEL of a container names in its prevResult: the link of the last ADD; of
// an earlier ADD, because the runtime died before it kept the last result; of another container, by
// mistake; or of nobody.
func (r *wholeRun) kept(c, way int) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	own := r.results[c]
	switch n := way / 4; {
	case way%4 == 3:
		return "b" + r.core.Instance[:4] + string(hold.NewID())
	case way%4 == 2:
		for i := range wholeContainers {
			if other := r.results[(c+1+n+i)%wholeContainers]; len(other) > 0 {
				return other[len(other)-1]
			}
		}
	case way%4 == 1 && len(own) > 1:
		return own[n%(len(own)-1)]
	}
	if len(own) > 0 {
		return own[len(own)-1]
	}
	return ""
}

// refused sends an ADD that the agent must refuse with a code, and that changes nothing.
func (r *wholeRun) refused(s wholeStep, at ns.Ref, code uint) bool {
	ctx, cancel := r.patience()
	defer cancel()
	_, err := r.Add(ctx, r.ask(s, at, ""), r.when())
	switch {
	case r.dead():
		return false
	case isCode(err, code), err != nil && !r.spotless():
	default:
		r.fail("%s: ADD answers %v", s, err)
	}
	return true
}

// doLateAdd executes an ADD that a DEL has overtaken.
func (r *wholeRun) doLateAdd(s wholeStep) bool {
	early := r.when()
	if !r.insistDelete(s.c, 0) {
		return false
	}
	if r.world.Boottime() > early.Started+int64(server.MaxDeadline) { // the server would say that the ADD's deadline has passed
		return true
	}
	ctx, cancel := r.patience()
	defer cancel()
	raw, err := r.Add(ctx, r.ask(s, r.pods[s.pod].Ref(), ""), early)
	switch {
	case r.dead():
		return false
	case err == nil:
		r.fail("an ADD of c%d that is older than its DEL answers %s", s.c, raw)
	case !isCode(err, 11) && !isCode(err, 100) && !isCode(err, 101) && r.spotless():
		r.fail("an ADD of c%d that is older than its DEL: %v", s.c, err)
	}
	return true
}

// doRace deletes a container while it is added.
func (r *wholeRun) doRace(s wholeStep) bool {
	r.leave(s.c)
	ctx, cancel := r.patience()
	defer cancel()
	add, del := r.when(), r.when()
	var both sync.WaitGroup
	both.Go(func() { _, _ = r.Add(ctx, r.ask(s, r.pods[s.pod].Ref(), ""), add) })
	both.Go(func() { _, _, _ = r.Delete(ctx, wholeKey(s.c), false, del) })
	both.Wait()
	return r.insistDelete(s.c, s.n)
}

// doTwins adds a container twice at once.
func (r *wholeRun) doTwins(s wholeStep) bool {
	r.leave(s.c)
	ctx, cancel := r.patience()
	defer cancel()
	when := r.when()
	var raws [2]json.RawMessage
	var errs [2]error
	var both sync.WaitGroup
	for i := range raws {
		both.Go(func() { raws[i], errs[i] = r.Add(ctx, r.ask(s, r.pods[s.pod].Ref(), ""), when) })
	}
	both.Wait()
	if r.dead() {
		return false
	}
	if errs[0] != nil || errs[1] != nil {
		return r.insistDelete(s.c, s.n) && r.doAdd(s)
	}
	for _, raw := range raws {
		r.attach(s.c, r.pods[s.pod], raw)
	}
	return true
}

// insistDelete repeats a DEL, in one of the ways of runtimes and people, until the agent promises
// the deletion. It returns false if the agent dies.
func (r *wholeRun) insistDelete(c, way int) bool {
	b := r.leave(c)
	key := wholeKey(c)
	filter := []api.Filter{key, {Container: key.Container}, {Namespace: "model", Pod: "pod-" + key.Container}, key}[way%4]
	if filter.Pod != "" && r.isPodless() {
		filter = key
	}
	if way%4 == 3 {
		filter.Link = r.kept(c, way>>3)
	}
	for try := 0; ; try++ {
		ctx, cancel := r.patience()
		d, known, err := r.Delete(ctx, filter, way&4 != 0, r.when())
		cancel()
		r.note("DEL of c%d by %+v: %+v, known %t, %v", c, filter, d, known, err)
		switch {
		case err == nil && try == 0 && b != nil && !b.pod.Ended() && !known:
			r.fail("DEL of c%d: it is not known", c)
			return true
		case err == nil:
			r.deleted(c, b)
			return true
		case r.dead():
			return false
		case r.spotless() || try > mostTries:
			r.fail("DEL of c%d: %v", c, err)
			return true
		}
		if try >= 1 {
			r.cure()
		}
		time.Sleep([]time.Duration{0, 50 * time.Millisecond}[rand.N(2)] + rand.N(15*time.Millisecond)) // beside its release
	}
}

// deleted checks what a DEL has promised.
func (r *wholeRun) deleted(c int, b *stay) {
	r.mu.Lock()
	delete(r.unsure, c)
	r.mu.Unlock()
	for _, e := range r.index.Key(keyFor(c)) {
		if e.Owner.Wanted() {
			r.fail("c%d is deleted, and still attached as %s", c, e.Owner.ID)
		}
	}
	if b != nil {
		r.promise(b)
	}
}

// deleteUnsure deletes the containers of which nobody knows whether the agent's end left them attached.
func (r *wholeRun) deleteUnsure() {
	for c := range wholeContainers {
		r.mu.Lock()
		unsure := r.unsure[c]
		r.mu.Unlock()
		if unsure && !r.insistDelete(c, 0) {
			return
		}
	}
}

// doLateDelete executes a DEL from before an attachment's ADD: the DEL spares the attachment.
func (r *wholeRun) doLateDelete(s wholeStep) bool {
	b := r.stands(s.c)
	if b == nil || b.anew {
		return true
	}
	late := server.When{Started: b.started - 1, Deadline: b.started + int64(time.Minute)}
	filter := wholeKey(s.c)
	if s.n&1 == 0 {
		filter.Link = r.kept(s.c, s.n>>1)
	}
	_, _, err := r.Delete(r.ctx, filter, false, late)
	if r.dead() {
		return true // the DEL may count as one that no agent has answered
	}
	if err != nil && r.spotless() {
		r.fail("late DEL of c%d: %v", s.c, err)
	}
	if e := r.index.Get(b.id); e == nil || !e.Owner.Wanted() {
		r.fail("a DEL from before c%d's ADD releases it", s.c)
	}
	return true
}

func (r *wholeRun) doGC(s wholeStep) bool {
	var gone []*stay
	for _, c := range s.cs {
		gone = append(gone, r.leave(c))
	}
	req := api.GCRequest{Network: "net"}
	r.mu.Lock()
	for c := range r.standing {
		req.Valid = append(req.Valid, api.GCValid{ContainerID: fmt.Sprintf("c%d", c), Ifname: "eth0"})
	}
	r.mu.Unlock()
	_, err := r.GC(r.ctx, req, r.when())
	switch {
	case r.dead():
		return false
	case err != nil && r.spotless():
		r.fail("GC: %v", err)
	}
	for i, c := range s.cs {
		if err == nil {
			r.deleted(c, gone[i])
		} else if !r.insistDelete(c, s.n) {
			return false
		}
	}
	return true
}

func (r *wholeRun) doCheck(s wholeStep) bool {
	b := r.stands(s.c)
	if b == nil {
		return true // the ADD of c is being done again
	}
	err := r.Check(r.ctx, r.ask(s, b.pod.Ref(), `,"prevResult":`+b.raw), r.when())
	if err == nil || r.dead() || b.hurt || b.pod.Ended() {
		return true
	}
	if (r.isDisturbed() || !r.spotless()) && (isCode(err, 103) || isCode(err, 11)) { // the attachment differs, or the agent could not look at it
		return true
	}
	if _, lost := r.world.Identify(b.pod.Ref()); lost != nil && isCode(err, 103) {
		return true
	}
	r.fail("CHECK of c%d: %v", s.c, err)
	return true
}

func (r *wholeRun) isDisturbed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.disturbed
}

func (r *wholeRun) doStatus() bool {
	_, err := r.Status(r.ctx, "")
	if err != nil && r.spotless() && !strings.Contains(err.Error(), "exhausted") {
		r.fail("STATUS: %v", err)
	}
	return true
}

func (r *wholeRun) doReload() bool {
	for try := 0; ; try++ {
		ctx, cancel := r.patience()
		if try == 0 {
			r.reloadBySignals(ctx)
		}
		err := r.ground.Reload(ctx, r.confs[r.script.extra])
		cancel()
		r.note("reload, extra pool %t: %v", r.script.extra, err)
		switch {
		case err == nil:
			return true
		case r.dead():
			return false
		case r.spotless() || try > mostTries:
			r.fail("reload: %v", err)
			return true
		}
		if try >= 1 {
			r.cure()
		}
	}
}

// disturb does a step that pods or other programs do to the node.
func (r *wholeRun) disturb(s wholeStep) {
	w := r.world
	if s.verb == "flush" || s.verb == "unroute" {
		r.mu.Lock()
		r.disturbed = true
		r.mu.Unlock()
	}
	switch s.verb {
	case "end pod": // without a DEL; a new pod is at the ended pod's path, with its inode
		w.End(r.pods[s.pod])
		r.pods[s.pod] = w.Pod(r.pods[s.pod].Ref().Path)
	case "rebind":
		r.lost = append(r.lost, r.pods[s.pod])
		r.pods[s.pod] = w.Pod(r.pods[s.pod].Ref().Path)
	case "flush":
		w.Flush()
		synctest.Wait()
	case "unroute":
		for p := range w.State().Pools {
			if s.n++; s.n%2 == 0 {
				w.DeletePoolRoute(p)
			}
		}
	case "stray":
		id := hold.NewID()
		w.Put(nodetest.Link{Name: "b" + r.core.Instance[:4] + string(id), Group: r.node.Groups.Live(), Up: true, Ifname: "x"})
	case "damage":
		b := r.stands(s.c)
		b.hurt = true
		r.hurt(b, s.n)
	}
}

// hurt changes an attachment's link.
func (r *wholeRun) hurt(b *stay, way int) {
	switch way % 8 {
	case 0:
		r.world.DeleteLink(b.link)
	case 1:
		r.world.DeleteRoute(b.addrs[way/8%2], b.link)
	case 2: // and up again or not
		r.world.SetDown(b.link)
	case 5:
		r.world.Reshape(b.link, rtnl.Rate{Rate: uint64(way / 8 % 2), Burst: 1})
	case 6:
		r.world.Repolice(b.link, rtnl.Rate{Rate: uint64(way / 8 % 2)})
	}
	r.world.SetLink(b.link, func(l *nodetest.Link) {
		switch way % 8 {
		case 2:
			l.Up = l.Up || way/8%2 == 0
		case 3:
			l.MTU = 1400
		case 4:
			l.Alias = "changed"
		case 7: // as if it were being deleted; only who makes a link deletes one that is half-made
			if l.Group == r.node.Groups.Coming() {
				return
			}
			l.Group = stamp.Groups(l.Group &^ 1023).Batch(uint32(way / 8))
		}
	})
}

// refuse notes the attachments that a failed ADD has begun: the agent must not take any hold of
// these attachments again.
func (r *wholeRun) refuse(c int, known []*attachment.Entry) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range r.index.Key(keyFor(c)) {
		if !slices.ContainsFunc(known, func(k *attachment.Entry) bool { return k.Owner.ID == e.Owner.ID }) {
			r.refusals[e.Owner.ID] = true
		}
	}
}

// isPodless reports whether there may be attachments whose pod the agent does not know.
func (r *wholeRun) isPodless() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.podless) > 0
}

// reloadBySignals hands the agent a configuration twice, as signals do, while a sweep hangs. The agent
// must take each configuration, whatever else is under way.
func (r *wholeRun) reloadBySignals(ctx context.Context) {
	strict := r.spotless()
	r.ails.begin(&ail{op: "verify", kind: "flows", c: -1, hangs: true}, 3*wholeSweeps)
	time.Sleep(wholeSweeps + time.Second)
	for range 2 {
		began := time.Now()
		select {
		case r.reloads <- config.Reading{Config: r.confs[r.script.extra]}:
		case <-ctx.Done():
		case <-time.After(patient):
		}
		if strict && r.plan.Surfaced() == "" && time.Since(began) > prompt {
			r.fail("nobody reads the configuration for %s", time.Since(began))
		}
	}
}

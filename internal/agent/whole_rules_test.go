package agent

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/attachment"
	"github.com/berth-net/berth/internal/ground"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kinds/link"
	"github.com/berth-net/berth/internal/node/nodetest"
	"github.com/berth-net/berth/internal/stamp"
)

// The rules that always hold:
//
//   - an address has one owner, and no other owner gets the address within its cooldown;
//   - an attachment whose deletion is promised is cut off at once, and the agent never takes its holds
//     again;
//   - an attachment that nobody has released keeps its link, its addresses and its routes, through
//     restarts and through DELs that come late or twice;
//   - no new link comes up after a plugin has queued its deletion and cut off what it found;
//   - no packet takes a way that a former owner of its address has left.
//
// The rules for when all has settled: ledger and node have what the model has, and nothing else. No
// deletion waits, and the agent shows each damaged file of the queue.

// tenancy says which owner last had an address.
type tenancy struct {
	owner hold.ID
	left  time.Time // when the run last saw the owner's release under way; zero: never
	used  bool      // the node's end of the link may have been up
}

func keyFor(c int) attachment.Key {
	return attachment.Key{Network: "net", ContainerID: fmt.Sprintf("c%d", c), Ifname: "eth0"}
}

func linkOf(h hold.Hold) *link.Spec { return h.Spec.(*link.Spec) }

// linkRules sees everything that an agent does to a link, before the agent does it.
func (r *wholeRun) linkRules(op string, h hold.Hold) {
	spec := linkOf(h)
	r.mu.Lock()
	defer r.mu.Unlock()
	var wrong []string
	defer func() {
		if len(wrong) > 0 && r.failure == "" {
			r.failure = strings.Join(wrong, "\n")
		}
	}()
	if op == "acquire" && r.refusals[h.Owner] {
		wrong = append(wrong, fmt.Sprintf("%s is taken again though its ADD has failed", spec))
	}
	_, outlived := r.ails.outlived.Load(h.Owner)
	if _, released := r.promised[h.Owner]; released && op == "acquire" && !outlived {
		wrong = append(wrong, fmt.Sprintf("%s is taken again though its owner's release is promised", spec))
	}
	for c, b := range r.standing {
		if op != "acquire" && op != "furnish" && b.id == h.Owner && !b.pod.Ended() {
			wrong = append(wrong, fmt.Sprintf("%s %s: nobody has released c%d", op, spec, c))
		}
	}
	now := time.Now()
	if op == "furnish" { // only from here on can somebody use the addresses, so that they have to rest
		wrong = append(wrong, r.ruleQueued(spec)...)
		for _, a := range spec.Addresses {
			if was, had := r.holders[a]; had && was.owner == h.Owner {
				was.used = true
				r.holders[a] = was
			} else if had {
				wrong = append(wrong, fmt.Sprintf("%s gets %s, which %s has", h.Owner, a, was.owner))
			}
		}
		return
	}
	if op != "acquire" { // the spec of a link that the agent adopted or found may lack addresses
		for a, was := range r.holders {
			// A cut that hung may come when the link and its owner are long gone.
			if was.owner == h.Owner && (op == "release" || was.left.IsZero()) {
				was.left = now
				r.holders[a] = was
			}
		}
		return
	}
	for _, a := range spec.Addresses {
		was, had := r.holders[a]
		switch {
		case had && was.owner == h.Owner:
		case had && was.left.IsZero():
			wrong = append(wrong, fmt.Sprintf("%s is given to %s, and %s has it", a, h.Owner, was.owner))
		case had && was.used && now.Sub(was.left) < wholeCooldown:
			wrong = append(wrong, fmt.Sprintf("%s is given to %s %s after %s had it", a, h.Owner, now.Sub(was.left), was.owner))
		default:
			r.holders[a] = tenancy{owner: h.Owner}
		}
	}
}

// ruleQueued says what is wrong if a new link is about to come up after a plugin has queued the
// deletion of its ADD, and has cut off what the plugin found. The caller holds r.mu.
func (r *wholeRun) ruleQueued(spec *link.Spec) []string {
	of, _ := stamp.Parse(spec.Alias)
	l, there := r.world.Link(spec.Name)
	for c, del := range r.passed {
		if there && l.Group == r.node.Groups.Coming() && of.Is(keyFor(c)) && of.Start <= del {
			return []string{fmt.Sprintf("%s comes up after a plugin has queued its deletion and looked for it", spec)}
		}
	}
	return nil
}

// isPromised reports whether the release of an owner is promised.
func (r *wholeRun) isPromised(id hold.ID) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, promised := r.promised[id]
	return promised
}

// promise notes that an attachment's release is promised, and checks that the attachment is cut off.
func (r *wholeRun) promise(b *stay) {
	r.mu.Lock()
	r.promised[b.id] = b.link
	r.mu.Unlock()
	if r.world.Reachable(b.link) {
		r.fail("the release of %s is promised, and it is not cut off: %s", b.link, r.world.State())
	}
}

// rules checks the rules after each wave, while work goes on behind the answers.
func (r *wholeRun) rules() {
	if astray := r.world.Traffic(); len(astray) > 0 {
		r.fail("%s", strings.Join(astray, "\n"))
	}
	r.ruleCut()
	r.mu.Lock()
	defer r.mu.Unlock()
	var wrong []string
	for c, b := range r.standing {
		if b.hurt || b.pod.Ended() {
			continue
		}
		if why := r.lacks(b); why != "" {
			wrong = append(wrong, fmt.Sprintf("c%d is attached by %s, and %s", c, b.link, why))
		}
	}
	if len(wrong) > 0 && r.failure == "" {
		r.failure = strings.Join(wrong, "\n")
	}
}

// ruleCut checks that each owner whose release is promised is cut off. A repair that looked before
// a plugin queued the owner's deletion, and an Acquire that ignores the end of its context, may make
// the owner's link reachable for a moment: they cut the link off again as they end.
func (r *wholeRun) ruleCut() {
	within := r.reachable()
	if len(within) > 0 {
		time.Sleep(time.Second)
		within = slices.DeleteFunc(within, func(id hold.ID) bool { return !slices.Contains(r.reachable(), id) })
	}
	if len(within) > 0 {
		r.fail("the release of %v was promised, and is not cut off", within)
	}
}

// reachable returns the owners whose release is promised and whose link can be reached.
func (r *wholeRun) reachable() []hold.ID {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []hold.ID
	for id, name := range r.promised {
		if r.world.Reachable(name) {
			all = append(all, id)
		}
	}
	return all
}

// lacks says what an attachment lacks.
func (r *wholeRun) lacks(b *stay) string { return r.world.Lacks(b.link, b.pod, "eth0", b.addrs) }

// afterRestart compares what an agent has made of its ledger with the model.
func (r *wholeRun) afterRestart() {
	list := map[string]api.Attachment{}
	for _, at := range r.List(api.Filter{}) {
		if at.Releasing == nil {
			list[at.ContainerID] = at
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	var wrong []string
	for c, b := range r.standing {
		name := fmt.Sprintf("c%d", c)
		at, ok := list[name]
		delete(list, name)
		if b.pod.Ended() && !ok {
			continue
		}
		if !ok || at.ID != string(b.id) || fmt.Sprint(at.Addresses) != fmt.Sprint(b.addrs) {
			wrong = append(wrong, fmt.Sprintf("%s was attached as %s with %v, and is %+v", name, b.id, b.addrs, at))
		}
	}
	for name, at := range list {
		var c int
		fmt.Sscanf(name, "c%d", &c)
		if r.queued[c] != nil && !r.spotless() { // the agent could not do the deletion yet
			continue
		}
		if !r.unsure[c] {
			wrong = append(wrong, fmt.Sprintf("%s is attached, and should not be: %+v", name, at))
		}
	}
	if len(wrong) > 0 && r.failure == "" {
		r.failure = "after a start: " + strings.Join(wrong, "\n")
	}
}

// settle waits until all is as it should be, and compares the node and the agent with the model and
// its script.
func (r *wholeRun) settle() {
	r.rest()
	r.script.settled()
	state := r.state()
	r.states = append(r.states, state)
	if want := r.script.state(); state != want {
		r.fail("attached are\n%s\nand should be\n%s", state, want)
	}
	r.endLost()
}

// rest ends the faults, waits until all is as it should be, and compares the node and the agent with
// the model.
func (r *wholeRun) rest() {
	if r.cure(); r.dead() {
		r.restart(false)
	}
	for try := 0; !r.settled() && r.failure == ""; try++ {
		if try > 50 {
			r.fail("not settled: %v; owed %v", r.core.Ledger.Owners(), r.core.Engine.Owed(""))
		}
		time.Sleep(5 * time.Second)
		r.Sweep(r.ctx)
	}
	for range 3 { // one sweep mends what is missing; the second that sees a leftover removes it
		time.Sleep(time.Second) // so that a worker that waits gets its turn
		r.Sweep(r.ctx)
	}
	r.mu.Lock()
	for c, b := range r.standing {
		if b.hurt = false; b.pod.Ended() {
			delete(r.standing, c)
		}
	}
	for c, b := range r.queued {
		r.promised[b.id] = b.link
		delete(r.queued, c)
	}
	r.mu.Unlock()
	r.disturbed = false
	r.ails.well()
	r.afterRestart()
	r.setAside()
	if a, err := r.Audit(r.ctx); err != nil || len(a.Findings) > 0 {
		r.fail("audit: %v %+v", err, a.Findings)
	}
	r.residue()
	r.ruleNames()
}

// settled reports whether the agent is releasing nothing, and has nothing that it should release.
func (r *wholeRun) settled() bool {
	for _, o := range r.core.Ledger.Owners() {
		if !o.Wanted() {
			return false
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, b := range r.standing {
		if b.pod.Ended() && r.index.Get(b.id) != nil {
			return false
		}
	}
	return len(r.core.Engine.Owed("")) == 0 && len(r.traffic.Unrinsed()) == 0 && r.emptied()
}

// state says who is attached, in the script's words.
func (r *wholeRun) state() string {
	var lines []string
	for _, e := range r.index.All() {
		if !e.Owner.Wanted() {
			continue
		}
		pod := -1
		for i, p := range r.pods {
			if e.Record.Netns == p.Ref() && e.Record.Epoch == r.core.Epoch {
				pod = i
			}
		}
		lines = append(lines, fmt.Sprintf("%s in pod %d from %s", e.Record.ContainerID, pod, e.Record.Pool))
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// residue compares everything on the node with what the model has.
func (r *wholeRun) residue() {
	r.mu.Lock()
	defer r.mu.Unlock()
	left := r.world.State()
	var wrong []string
	links, ways := map[string]bool{}, 0
	for c, b := range r.standing {
		links[b.link] = true
		ways += len(b.addrs)
		if why := r.lacks(b); why != "" {
			wrong = append(wrong, fmt.Sprintf("c%d: %s", c, why))
		}
		if l, want := left.Links[b.link], wholeRate(c)/8; want > 0 && (l.Shape.Rate != want || l.End.Shape.Rate != 1_000_000 || l.Police != l.End.Shape) {
			wrong = append(wrong, fmt.Sprintf("c%d: the link sends with %s and %s, not with %d, and lets in %s", c, l.Shape, l.End.Shape, want, l.Police))
		}
	}
	for name := range left.Links {
		if !links[name] {
			wrong = append(wrong, "left: link "+name)
		}
	}
	for _, p := range append(r.lost, r.pods[:]...) {
		for ifname, l := range p.Ends() {
			if !links[l.Name] {
				wrong = append(wrong, fmt.Sprintf("left: %s in %s", ifname, p.Ref().Path))
			}
		}
	}
	if len(left.Ways) != ways {
		wrong = append(wrong, fmt.Sprintf("%d host routes, not %d", len(left.Ways), ways))
	}
	for a, name := range left.Flows {
		if !links[name] {
			wrong = append(wrong, fmt.Sprintf("left: connections of %s, by %s", a, name))
		}
	}
	pools := map[string]bool{}
	for _, p := range r.confs[r.script.extra].Pools {
		for _, c := range p.CIDRs {
			pools[c.String()] = true
		}
	}
	for id := range left.Ports {
		if o, ok := r.core.Ledger.Owner(id); !ok || !o.Wanted() {
			wrong = append(wrong, fmt.Sprintf("left: host ports of %s: %v", id, left.Ports[id]))
		}
	}
	for p := range left.Pools {
		if p.Local {
			continue
		}
		if !pools[p.CIDR.String()] && !strings.Contains(p.CIDR.String(), "89") {
			wrong = append(wrong, "left: "+p.String())
		}
		delete(pools, p.CIDR.String())
	}
	for _, p := range slices.Sorted(maps.Keys(pools)) {
		wrong = append(wrong, "missing: the route of "+p)
	}
	if id, held := r.core.Ledger.Holder(ground.TableName); !held || left.Table == nil || left.Table.Owner != string(id) {
		wrong = append(wrong, fmt.Sprintf("the table is %v, held by %s", left.Table, id))
	}
	if len(wrong) > 0 && r.failure == "" {
		r.failure = "all has settled:\n" + strings.Join(wrong, "\n")
	}
}

// endLost ends the namespaces that nobody can find and that have no link.
func (r *wholeRun) endLost() {
	r.lost = slices.DeleteFunc(r.lost, func(p *nodetest.Pod) bool {
		if len(p.Ends()) > 0 {
			return false
		}
		r.world.End(p)
		return true
	})
}

// finale detaches everything, ends the agent's life, and removes the agent as berthd --remove does
// (Remove): a sweep beside the removal would take again what the removal gives back. Nothing is left.
func (r *wholeRun) finale() {
	if r.failure != "" {
		r.finish()
		return
	}
	r.settle()
	for c := range wholeContainers {
		r.insistDelete(c, c)
	}
	r.script.attached = map[int]wholeBerth{}
	r.settle()
	r.finish()
	if r.reopen(); r.failure != "" {
		return
	}
	if err := r.remove(r.ctx); err != nil {
		r.fail("removing: %v", err)
	}
	if left := r.core.Ledger.Owners(); len(left) > 0 {
		r.fail("left in the ledger: %v", left)
	}
	if left := r.world.State(); !left.Empty() {
		r.fail("left on the node: %s", left)
	}
	r.finish()
}

package agent

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/engine"
	"github.com/berth-net/berth/internal/fault"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/nettest"
)

var (
	seedFlag = flag.Uint64("seed", 0, "seed of the model test; 0: a new one, which is printed")
	opsFlag  = flag.Int("ops", 600, "operations of the model test, over all its runs")
)

// TestModel lets an agent live through random operations on the real kernel
// (model_ops_test.go): requests of runtimes, changes that pods and others make behind the
// agent's back, and faults: every life of the agent has one fault or ends in one. Pods are
// deleted while the agent is away, and the node reboots (model_away_test.go). A model knows who
// is attached with which address.
func TestModel(t *testing.T) {
	nettest.Need(t)
	nettest.Program(t, "ip")
	seed := cmp.Or(*seedFlag, uint64(time.Now().UnixNano()))
	t.Logf("replay with -seed %d", seed)
	faults := 0
	cooldowns := []time.Duration{time.Hour, 0, time.Hour, time.Millisecond}
	for i, cooldown := range cooldowns {
		t.Run(fmt.Sprint(i, " ", cooldown), func(t *testing.T) {
			m := newAgentModel(t, seed+uint64(i), cooldown)
			m.play(*opsFlag / len(cooldowns))
			t.Logf("%v; %d lives, %d killed, %d other faults, %d addresses given", m.done, m.lives, m.killed, m.failed, len(m.given))
			faults += m.killed + m.failed
		})
	}
	if !t.Failed() && *opsFlag >= 600 && faults < 3 {
		t.Errorf("%d faults: the plans do not reach the agent", faults)
	}
}

// The pods and containers of the model. There are more containers than pods,
// so that they are in each other's way.
const (
	modelPods       = 8
	modelContainers = 11
)

// berth is what the model knows of an attachment.
type berth struct {
	id     string
	pod    *ns.Netns
	raw    string // the result
	addrs  []netip.Addr
	before int64 // a time before its ADD
	hurt   bool  // somebody damaged it; a sweep mends that
	doomed bool  // its pod is gone: it may be released at any time
}

func (b *berth) String() string {
	if b == nil {
		return "none"
	}
	return fmt.Sprintf("%s %v in %s", b.id, b.addrs, b.pod.Ref().Path)
}

// agentModel is a rig with a model of what the rig's agent should have.
type agentModel struct {
	*rig
	random   *rand.Rand
	plan     *fault.Plan
	ctx      context.Context // ends with the agent's life
	end      context.CancelFunc
	pods     []*ns.Netns
	attached map[string]*berth // by container
	unsure   map[string]bool   // containers to delete: nobody knows what became of them
	given    map[netip.Addr]string
	queued   map[string]*berth   // containers whose deletions may wait
	results  map[string][]string // the links that a container's ADDs have answered, the last one last
	damaged  int                 // files in the queue that are no deletions
	extra    bool                // the second pool is configured
	laggards laggards            // whose cuts fail (model_bulk_test.go)
	flushed  bool                // somebody flushed the agent's table, and the agent may not have noticed yet

	lives, killed, failed int
	done                  map[string]int
	notes                 []string
}

const (
	modelPool  = "default=10.88.0.0/21,fd00:88::/64"
	modelExtra = "extra=10.89.0.0/24,fd00:89::/64"
)

func newAgentModel(t *testing.T, seed uint64, cooldown time.Duration) *agentModel {
	m := &agentModel{
		rig:      newRig(t, modelPool),
		random:   rand.New(rand.NewPCG(seed, 0)),
		attached: map[string]*berth{}, unsure: map[string]bool{}, given: map[netip.Addr]string{}, done: map[string]int{},
		queued: map[string]*berth{}, results: map[string][]string{},
	}
	m.cooldown = cooldown
	return m
}

func (m *agentModel) play(ops int) {
	m.t.Cleanup(func() {
		if m.t.Failed() {
			m.t.Logf("what happened last:\n%s", strings.Join(m.notes, "\n"))
		}
	})
	before := nettest.Snapshot(m.t, nil).Without("sysctl")
	for range modelPods {
		m.pods = append(m.pods, nettest.Pod(m.t))
	}
	m.live(true)
	for i := 0; i < ops && !m.t.Failed(); i++ {
		op := modelOps[m.random.IntN(len(modelOps))]
		m.done[op.name]++
		op.do(m)
		if m.dead() {
			m.restart(true)
		}
		if m.random.IntN(15) == 0 {
			m.settle()
		}
	}
	m.settle()
	for c := range m.attached {
		m.insistDelete(c, true)
	}
	if m.plan.Heal(); m.dead() { // insistDelete may have begun lives, each with a fault of its own
		m.restart(false)
	}
	m.releaseAll()
	if err := m.remove(context.Background()); err != nil {
		m.t.Errorf("removing: %v", err)
	}
	if left := m.core.Ledger.Owners(); len(left) > 0 {
		m.t.Errorf("left in the ledger: %v", left)
	}
	m.close()
	for _, p := range m.pods {
		if links := nettest.Snapshot(m.t, p).Only("link").String(); strings.Contains(links, "eth0") {
			m.t.Errorf("left in %s:\n%s", p.Ref().Path, links)
		}
		nettest.Delete(m.t, p)
	}
	nettest.Same(m.t, before, nettest.Snapshot(m.t, nil).Without("sysctl"), "residue")
}

// live starts the agent. If a faulty agent dies at its start, live starts another one. It
// deletes attachments whose fate nobody knows, as a runtime does.
func (m *agentModel) live(faulty bool) {
	for {
		modes := fault.Modes()
		m.plan = fault.New(1+m.random.IntN(40), modes[m.random.IntN(len(modes))])
		if !faulty {
			m.plan.Heal()
		}
		m.lives++
		m.note("a life that is to %s operation %d", m.plan.Mode, m.plan.N)
		m.decorate = func(l engine.Ledger, ks hold.Kinds) (engine.Ledger, hold.Kinds) {
			return m.plan.Decorate(m.laggards.decorate(l, ks))
		}
		if err := m.open(); err != nil {
			m.t.Fatalf("opening: %v", err)
		}
		m.ctx, m.end = m.plan.Context(m.t.Context())
		err := m.Restore(m.ctx)
		if err != nil && m.plan.Surfaced() == "" {
			m.t.Errorf("restoring: %v", err)
		}
		if err == nil && !m.dead() {
			m.afterRestart()
			for c := range m.unsure {
				m.insistDelete(c, m.random.IntN(2) == 0)
			}
		}
		if err == nil && !m.dead() {
			return
		}
		m.finish() // the next round starts another agent, as systemd does
	}
}

func (m *agentModel) restart(faulty bool) {
	m.finish()
	m.live(faulty)
}

// finish ends the agent's life.
func (m *agentModel) finish() {
	switch {
	case m.dead():
		m.killed++
	case m.plan.Surfaced() != "":
		m.failed++
	}
	m.note("the life ends; its fault was at %q", m.plan.Surfaced())
	m.end()
	m.close()
}

func (m *agentModel) dead() bool { return m.plan.IsDead() }

// note remembers what happened. A test that fails tells the last notes.
func (m *agentModel) note(format string, args ...any) {
	m.notes = append(m.notes, fmt.Sprintf(format, args...))
	m.notes = m.notes[max(0, len(m.notes)-40):]
}

// wanted lists the attachments that nobody has released, by container.
func (m *agentModel) wanted() map[string]api.Attachment {
	all := map[string]api.Attachment{}
	for _, at := range m.List(api.Filter{}) {
		if at.Releasing == nil {
			all[at.ContainerID] = at
		}
	}
	return all
}

// afterRestart compares the list with the model: the list has exactly the attachments of the
// model, with the same addresses.
func (m *agentModel) afterRestart() {
	m.t.Helper()
	list := m.wanted()
	for c, b := range m.attached {
		at, ok := list[c]
		switch {
		case !ok && b.doomed:
		case !ok:
			m.t.Errorf("%s was attached with %v, and is not", c, b.addrs)
		case at.ID != b.id || fmt.Sprint(at.Addresses) != fmt.Sprint(b.addrs) || at.Netns != b.pod.Ref().Path:
			m.t.Errorf("%s is %+v, attached was %v", c, at, b)
		}
		delete(list, c)
	}
	for c, at := range list {
		waits := m.queued[c] != nil && m.plan.Surfaced() != "" // the agent could not do the deletion yet
		if !m.unsure[c] && !waits {
			m.t.Errorf("%s is attached, and should not be: %+v", c, at)
		}
	}
}

// settle ends the faults and waits until all is as it should be: nothing is
// being released, what was damaged is mended, who has no pod is gone, pings
// work, and the audit has nothing to say.
func (m *agentModel) settle() {
	m.t.Helper()
	if m.plan.Heal(); m.dead() {
		m.restart(false)
	}
	nettest.Eventually(m.t, "all is settled", func() bool {
		m.Sweep(m.ctx)
		list := m.wanted()
		for c, b := range m.attached {
			if _, ok := list[c]; b.doomed && !ok {
				delete(m.attached, c)
			}
		}
		releasing := slices.ContainsFunc(m.core.Ledger.Owners(), func(o hold.Owner) bool { return !o.Wanted() })
		doomed := false
		for _, b := range m.attached {
			doomed = doomed || b.doomed
		}
		return !releasing && !doomed && len(m.core.Engine.Owed("")) == 0
	})
	m.Sweep(m.ctx)
	m.emptied()
	m.afterRestart()
	m.wantClean()
	routes := nettest.Snapshot(m.t, nil).Only("route").String()
	for pool, configured := range map[string]bool{modelPool: true, modelExtra: m.extra} {
		_, cidrs, _ := strings.Cut(pool, "=")
		for _, cidr := range strings.Split(cidrs, ",") {
			if configured && !strings.Contains(routes, cidr) {
				m.t.Errorf("the route of %s is missing:\n%s", cidr, routes)
			}
		}
	}
	m.flushed = false
	var living []*berth
	for _, b := range m.attached {
		b.hurt = false
		living = append(living, b)
	}
	if len(living) >= 2 {
		i := m.random.IntN(len(living))
		from, to := living[i], living[(i+1+m.random.IntN(len(living)-1))%len(living)]
		for _, a := range to.addrs {
			nettest.Ping(m.t, from.pod, a)
		}
	}
	if m.random.IntN(2) == 0 {
		m.restart(true)
	}
}

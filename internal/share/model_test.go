package share_test

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-net/berth/api/v1alpha1"
	"github.com/berth-net/berth/internal/blocks"
	"github.com/berth-net/berth/internal/share"
	"github.com/berth-net/berth/internal/share/apitest"
)

var (
	seed  = flag.Uint64("seed", 0, "replay one run of TestModel, verbosely")
	runs  = flag.Int("runs", 500, "how many runs TestModel has")
	steps = flag.Int("steps", 2500, "how many steps a run of TestModel has")
)

var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

// model is a cluster: an API server in memory, operators, the nodes' agents, and people. One step lets one of them do one
// thing, chosen by a seed; an operator does as much as one call of the API server.
type model struct {
	*rand.Rand
	server    *apitest.Server
	operators []*operator
	agents    map[string]*agent
	lies      apitest.Lies
	naive     bool   // agents write Held by whatever version there is
	calm      bool   // nothing fails, and no operator dies
	current   *task  // that runs
	nodes     int    // how many there are at most
	crowd     int    // people do one thing in so many steps
	lag       int    // an operator's cache sees news in one of so many steps
	sick      int    // the more, the rarer do calls fail
	fault     string // what must never be
	trace     func(format string, args ...any)
}

// operator is a process of the operator, which has a task for pools and one for nodes at the same time.
type operator struct {
	*model
	id     int
	client *apitest.Client
	share  *share.Sharer
	dead   bool
	pause  int // how many of its turns it sleeps through
	tasks  [2]*task
}

// task is a goroutine that runs only between resume and stopped.
type task struct {
	resume  chan bool
	stopped chan bool // true: at its end
}

func newModel(seed uint64) *model {
	m := &model{
		Rand: rand.New(rand.NewPCG(seed, 1)), server: apitest.New(), agents: map[string]*agent{}, trace: func(string, ...any) {},
	}
	m.nodes, m.crowd, m.lag, m.sick = 2+m.IntN(4), 20<<m.IntN(4), 1<<m.IntN(5), 1<<m.IntN(8)
	for range m.nodes {
		m.editPool()
		m.people()
	}
	for i := range 2 {
		m.operators = append(m.operators, &operator{model: m, id: i})
		m.operators[i].start()
	}
	return m
}

// start starts the operator's process anew. Its cache begins with a list, which may be old.
func (o *operator) start() {
	o.dead = false
	o.client = &apitest.Client{Server: o.server, Cache: o.server.Cache(max(0, o.server.Version()-o.IntN(1<<o.IntN(9)))), Lies: o.lies}
	o.share = share.New(o.client, quiet)
	o.share.Writers = 1
}

// run lets a task go on until its next call or its end.
func (o *operator) run(slot int, what string, do func() error) {
	t := &task{resume: make(chan bool), stopped: make(chan bool)}
	o.tasks[slot] = t
	o.trace("operator %d begins %s", o.id, what)
	go func() {
		<-t.resume
		err := do()
		o.trace("operator %d ends %s: %v", o.id, what, err)
		t.stopped <- true
	}()
	o.step(slot)
}

func (o *operator) step(slot int) {
	t := o.tasks[slot]
	o.current = t
	t.resume <- true
	if <-t.stopped {
		o.tasks[slot] = nil
	}
}

// fate is called before each call: the task waits there until it is its turn.
func (o *operator) fate(client *apitest.Client, write bool) apitest.Fate {
	t := o.current
	t.stopped <- false
	<-t.resume
	switch {
	case o.dead || client != o.client:
		return apitest.Failed
	case o.calm:
		return apitest.Done
	case o.IntN(20*o.sick) == 0:
		o.trace("operator %d dies", o.id)
		o.dead = true
		if write && o.IntN(2) == 0 {
			return apitest.Lost
		}
		return apitest.Failed
	case o.IntN(10*o.sick) == 0:
		return apitest.Failed
	case write && o.IntN(5*o.sick) == 0:
		return apitest.Lost
	}
	return apitest.Done
}

// act lets the operator do something.
func (o *operator) act() {
	if o.pause > 0 && !o.calm {
		o.pause--
		return
	}
	if o.IntN(150) == 0 {
		o.pause = o.IntN(150)
	}
	if o.client.Before == nil {
		c := o.client
		c.Before = func(write bool) apitest.Fate { return o.fate(c, write) }
		c.Reading = func() { o.fate(c, false) } // others may act; what fails then, fails at the next call
	}
	if o.calm || o.IntN(o.lag) == 0 {
		o.client.Cache.Advance(1 + o.IntN(1<<o.IntN(8)))
	}
	slot := o.IntN(2)
	if o.tasks[slot] != nil {
		o.step(slot)
		return
	}
	if o.dead {
		if o.tasks == [2]*task{} {
			o.start()
		}
		return
	}
	nodes, pools := o.client.Cache.Names()
	switch {
	case slot == 0 && len(pools) > 0:
		name := pools[o.IntN(len(pools))]
		o.run(0, "pool "+name, func() error {
			_, err := o.share.Pool(context.Background(), name)
			return err
		})
	case slot == 1 && len(nodes) > 0:
		name := nodes[o.IntN(len(nodes))]
		o.run(1, "node "+name, func() error { return o.share.Node(context.Background(), name) })
	}
}

// check looks whether any block is with two nodes: in their NodeNetworks, or in use there.
func (m *model) check() {
	who := map[string]string{}
	claim := func(cidr, node, how string) {
		for other, name := range who {
			if name != node && netip.MustParsePrefix(other).Overlaps(netip.MustParsePrefix(cidr)) {
				m.fault = fmt.Sprintf("%s is %s of %s, and %s is with %s", cidr, how, node, other, name)
			}
		}
		who[cidr] = node
	}
	for _, n := range apitest.List[*v1alpha1.NodeNetwork](m.server) {
		for _, b := range n.Spec.Blocks {
			claim(b.CIDR, n.Name, "in the spec")
		}
		for _, b := range n.Status.Held {
			claim(b.CIDR, n.Name, "held")
		}
	}
	for _, name := range slices.Sorted(maps.Keys(m.agents)) {
		for cidr, l := range m.agents[name].ledger {
			if l.sure {
				claim(cidr, name, "in use")
			}
		}
	}
}

var poolNames = []string{"a", "b"}

// cidrs are what people put into pools: some are the same in both.
var cidrs = []string{"10.0.0.0/29", "10.0.0.8/29", "10.0.0.16/28", "10.0.0.0/28", "10.0.1.0/29"}

// people does something that people do.
func (m *model) people() {
	name := fmt.Sprintf("n%d", m.IntN(m.nodes))
	switch what := m.IntN(20); {
	case what < 8: // a node comes or goes, with all that is on it
		node := apitest.Get[*corev1.Node](m.server, name)
		if node == nil {
			m.trace("node %s comes", name)
			node = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"name": name}}}
			_ = m.server.Create(node)
			m.agents[name] = &agent{model: m, name: name, node: node.UID, ledger: map[string]*lease{}}
		} else if m.IntN(4) == 0 {
			m.trace("node %s goes", name)
			delete(m.agents, name)
			_ = m.server.Delete(node, name, "")
		}
	case what < 11: // garbage collection
		for _, n := range apitest.List[*v1alpha1.NodeNetwork](m.server) {
			node := apitest.Get[*corev1.Node](m.server, n.Name)
			if (node == nil || node.UID != n.OwnerReferences[0].UID) && n.DeletionTimestamp == nil {
				_ = m.server.Delete(n, n.Name, n.UID)
			}
		}
	case what < 14:
		if m.IntN(3) > 0 {
			m.trace("NodeNetwork %s is deleted by force", name)
			_ = m.server.Force(&v1alpha1.NodeNetwork{}, name)
		} else {
			_ = m.server.Delete(&v1alpha1.NodeNetwork{}, name, "")
		}
	default:
		m.editPool()
	}
}

func (m *model) editPool() {
	name := poolNames[m.IntN(2)]
	pool := apitest.Get[*v1alpha1.IPPool](m.server, name)
	switch {
	case pool == nil:
		_ = m.server.Create(&v1alpha1.IPPool{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.IPPoolSpec{
			IPv4: &v1alpha1.Range{CIDRs: []string{cidrs[m.IntN(len(cidrs))]}, BlockSize: 31},
		}})
	case m.IntN(3) == 0:
		p := pool.DeepCopy()
		if p.Spec.NodeSelector = nil; m.IntN(2) == 0 {
			p.Spec.NodeSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"name": fmt.Sprintf("n%d", m.IntN(m.nodes))}}
		}
		_ = m.server.Update(p, false)
	case m.IntN(12) == 0:
		m.trace("pool %s is deleted", name)
		_ = m.server.Delete(pool, name, "")
	case m.IntN(3) == 0:
		p := pool.DeepCopy()
		in := cidrs[m.IntN(len(cidrs))]
		if i := slices.Index(p.Spec.IPv4.CIDRs, in); i >= 0 && len(p.Spec.IPv4.CIDRs) > 1 {
			p.Spec.IPv4.CIDRs = slices.Delete(p.Spec.IPv4.CIDRs, i, i+1)
		} else if i < 0 {
			p.Spec.IPv4.CIDRs = append(p.Spec.IPv4.CIDRs, in)
		}
		m.trace("pool %s has %v", name, p.Spec.IPv4.CIDRs)
		_ = m.server.Update(p, false)
	}
}

func (m *model) step() {
	names := slices.Sorted(maps.Keys(m.agents))
	switch {
	case !m.calm && (len(names) == 0 || m.IntN(m.crowd) == 0):
		m.people()
	case m.IntN(3) > 0 || len(names) == 0:
		m.operators[m.IntN(2)].act()
	default:
		m.agents[names[m.IntN(len(names))]].act()
	}
	m.check()
}

// end ends what still runs.
func (m *model) end() {
	for _, o := range m.operators {
		o.dead = true
		for slot := range o.tasks {
			for o.tasks[slot] != nil {
				o.step(slot)
			}
		}
	}
}

// settle lets all go well until nothing changes any more, and returns what is wrong then.
func (m *model) settle() string {
	m.calm = true
	for _, n := range apitest.List[*v1alpha1.NodeNetwork](m.server) { // garbage collection
		node := apitest.Get[*corev1.Node](m.server, n.Name)
		if (node == nil || node.UID != n.OwnerReferences[0].UID) && n.DeletionTimestamp == nil {
			_ = m.server.Delete(n, n.Name, n.UID)
		}
	}
	for range 40 {
		for range 400 {
			if m.step(); m.fault != "" {
				return m.fault
			}
		}
		if m.wrong() == "" {
			return ""
		}
	}
	return m.wrong()
}

// wrong returns what is not as it has to be in the end.
func (m *model) wrong() string {
	given, inSpec := int64(0), int64(0)
	exhausted := map[string]bool{}
	for _, p := range apitest.List[*v1alpha1.IPPool](m.server) {
		set, err := blocks.Parse(p.Status.Given.IPv4)
		if err != nil || len(p.Status.Pending) > 0 {
			return fmt.Sprintf("the pool %s: %v, %v", p.Name, err, p.Status.Pending)
		}
		given += set.Len()
		exhausted[p.Name] = meta.IsStatusConditionTrue(p.Status.Conditions, v1alpha1.ConditionExhausted) || p.DeletionTimestamp != nil
	}
	for _, n := range apitest.List[*v1alpha1.NodeNetwork](m.server) {
		a := m.agents[n.Name]
		if a == nil {
			return n.Name + " has gone, and has a NodeNetwork"
		}
		have := map[string]int64{}
		for _, b := range n.Spec.Blocks {
			inSpec++
			if !b.Withdrawn {
				have[b.Pool] += 2
			} else if a.ledger[b.CIDR] == nil || a.ledger[b.CIDR].pods == 0 {
				return fmt.Sprintf("%s has %s, which is withdrawn and not in use", n.Name, b.CIDR)
			}
		}
		for _, r := range n.Status.Requests {
			if pool := apitest.Get[*v1alpha1.IPPool](m.server, r.Pool); pool != nil && pool.Spec.NodeSelector != nil &&
				pool.Spec.NodeSelector.MatchLabels["name"] != n.Name {
				r.Addresses = 0
			}
			if short := have[r.Pool] < int64(r.Addresses); short && !exhausted[r.Pool] && apitest.Get[*v1alpha1.IPPool](m.server, r.Pool) != nil {
				return fmt.Sprintf("%s needs %d of %s and has %d", n.Name, r.Addresses, r.Pool, have[r.Pool])
			}
			if have[r.Pool] > int64(r.Addresses)+3 {
				return fmt.Sprintf("%s needs %d of %s and has %d", n.Name, r.Addresses, r.Pool, have[r.Pool])
			}
		}
	}
	if given != inSpec {
		return fmt.Sprintf("%d blocks are given, and nodes have %d", given, inSpec)
	}
	return ""
}

// run runs a model, and returns what is wrong.
func (m *model) run(steps int) string {
	defer m.end()
	for i := range steps {
		if m.step(); m.fault != "" {
			return fmt.Sprintf("step %d: %s", i, m.fault)
		}
	}
	return m.settle()
}

// No block is ever with two nodes, and in the end each node has what it needs, and the pools have the rest.
func TestModel(t *testing.T) {
	if *seed != 0 {
		m := newModel(*seed)
		m.trace = t.Logf
		if wrong := m.run(*steps); wrong != "" {
			t.Fatalf("%s\n%s", wrong, m.dump())
		}
		return
	}
	first := rand.Uint64N(1 << 40)
	for i := range uint64(*runs) {
		m := newModel(first + i)
		if wrong := m.run(*steps); wrong != "" {
			t.Fatalf("%s\n%s\nto replay: go test ./internal/share -run 'TestModel$' -v -seed %d -steps %d", wrong, m.dump(), first+i, *steps)
		}
	}
}

func (m *model) dump() string {
	var b strings.Builder
	for _, p := range apitest.List[*v1alpha1.IPPool](m.server) {
		fmt.Fprintf(&b, "pool %s of %v deleting %t: %+v\n", p.Name, p.Spec.IPv4.CIDRs, p.DeletionTimestamp != nil, p.Status)
	}
	for _, n := range apitest.List[*v1alpha1.NodeNetwork](m.server) {
		fmt.Fprintf(&b, "%s %s deleting %t: %+v, held %+v, requests %+v\n", n.Name, n.UID, n.DeletionTimestamp != nil, n.Spec.Blocks, n.Status.Held, n.Status.Requests)
	}
	for name, a := range m.agents {
		fmt.Fprintf(&b, "agent %s: %v\n", name, a.ledger)
	}
	return b.String()
}

// Bugs that are planted are found.
func TestPlanted(t *testing.T) {
	for name, plant := range map[string]func(*model){
		"the pool is written without its version":        func(m *model) { m.lies.BlindPool = true },
		"NodeNetworks are written without their version": func(m *model) { m.lies.BlindNetwork = true },
		"blocks are freed by a cached list":              func(m *model) { m.lies.CachedList = true },
		"blocks are freed before all agents have spoken": func(m *model) { m.lies.Spoken = true },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(2000) {
				m := newModel(seed)
				plant(m)
				for _, o := range m.operators {
					o.start()
				}
				wrong := ""
				for range *steps {
					if m.step(); m.fault != "" {
						wrong = m.fault
						break
					}
				}
				m.end()
				if wrong != "" {
					t.Logf("seed %d: %s", seed, wrong)
					return
				}
			}
			t.Error("nobody noticed")
		})
	}
}

// agent is a node's agent. It reads its NodeNetwork as old as it likes, but never backwards.
type agent struct {
	*model
	name   string
	node   types.UID
	ledger map[string]*lease
	view   *v1alpha1.NodeNetwork
	needs  map[string]int32
}

// lease is a block in the ledger.
type lease struct {
	pool string
	pods int
	sure bool // the API server has it in Held: pods may have addresses
}

func (l *lease) String() string { return fmt.Sprintf("%+v", *l) }

func (a *agent) act() {
	switch n := a.IntN(10); {
	case n < 3: // it hears of its NodeNetwork
		a.hear()
	case n < 5: // pods come and go
		for _, cidr := range slices.Sorted(maps.Keys(a.ledger)) {
			l := a.ledger[cidr]
			b := a.inView(cidr)
			if free := b != nil && !b.Withdrawn; l.sure && free && !a.calm {
				l.pods = a.IntN(3)
			} else if l.pods > 0 {
				l.pods -= a.IntN(2)
			}
		}
		if a.needs == nil || !a.calm && a.IntN(3) == 0 {
			a.needs = map[string]int32{poolNames[a.IntN(2)]: int32(a.IntN(6))}
		}
	default:
		a.tell()
	}
}

func (a *agent) hear() {
	n := apitest.Get[*v1alpha1.NodeNetwork](a.server, a.name)
	if n == nil || n.OwnerReferences[0].UID != a.node {
		return
	}
	if a.view == nil || a.view.UID != n.UID || a.IntN(3) > 0 {
		a.view = n
	}
}

func (a *agent) inView(cidr string) *v1alpha1.Block {
	if a.view == nil {
		return nil
	}
	i := slices.IndexFunc(a.view.Spec.Blocks, func(b v1alpha1.Block) bool { return b.CIDR == cidr })
	if i < 0 {
		return nil
	}
	return &a.view.Spec.Blocks[i]
}

// tell writes the agent's status.
func (a *agent) tell() {
	if a.view == nil {
		return
	}
	for _, b := range a.view.Spec.Blocks {
		if a.ledger[b.CIDR] == nil && !b.Withdrawn {
			a.ledger[b.CIDR] = &lease{pool: b.Pool}
		}
	}
	n := a.view.DeepCopy()
	n.Status = v1alpha1.NodeNetworkStatus{Addresses: []string{"192.0.2.7"}}
	for _, pool := range slices.Sorted(maps.Keys(a.needs)) {
		n.Status.Requests = append(n.Status.Requests, v1alpha1.Request{Pool: pool, Addresses: a.needs[pool]})
	}
	for _, cidr := range slices.Sorted(maps.Keys(a.ledger)) {
		l := a.ledger[cidr]
		b := a.inView(cidr)
		if (b == nil || b.Withdrawn) && !l.sure || b != nil && b.Withdrawn && l.pods == 0 {
			delete(a.ledger, cidr) // pods never had it, or no longer have it
			continue
		}
		n.Status.Held = append(n.Status.Held, v1alpha1.Block{Pool: l.pool, CIDR: cidr})
	}
	if a.naive {
		if now := apitest.Get[*v1alpha1.NodeNetwork](a.server, a.name); now != nil && now.UID == n.UID {
			n.ResourceVersion = now.ResourceVersion
		}
	}
	err := a.server.Update(n, true)
	a.trace("%s holds %v: %v", a.name, n.Status.Held, err)
	if err == nil {
		a.view = n
		for _, l := range a.ledger {
			l.sure = true
		}
	} else if apierrors.IsConflict(err) && a.calm {
		a.hear()
	}
}

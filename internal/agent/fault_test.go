package agent

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/config"
	"github.com/berth-net/berth/internal/fault"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/ledger"
	"github.com/berth-net/berth/internal/nettest"
)

// TestFaults lets every operation of ADD, DEL, GC and a restart on the real kernel fail, and lets
// the agent die there, before and after the operation's effect. However each run ends: once the
// test has deleted everything, the oracle finds nothing, and the agent gave no address to a second
// pod. A short run takes every fifth operation, and begins with a random one of the first five.
func TestFaults(t *testing.T) {
	nettest.Need(t)
	pods := []*ns.Netns{nettest.Pod(t), nettest.Pod(t), nettest.Pod(t)}
	for _, p := range pods {
		nettest.Run(t, p, "ip link set lo up") // as an ADD does, for good
	}
	before := oracle(t, pods)
	points, first, every := 0, 1, 1
	if testing.Short() {
		every = 5
		first += rand.IntN(every)
	}
	for name, scenario := range map[string]func(*faultRun){
		"ADD, DEL and GC": (*faultRun).verbs,
		"restart":         (*faultRun).afterRestart,
		"queue":           (*faultRun).withQueue,
	} {
		points += fault.Each(t, name, fault.Modes(), first, every, func(newPlan func() *fault.Plan) {
			f := newFaultRun(t, newPlan(), pods)
			scenario(f)
			f.end(before)
		})
	}
	t.Logf("fault points covered: %d; residue: 0", points)
	pairs := faultPairs(t, pods, before)
	t.Logf("with somebody who comes in: %d", pairs)
	if points < 150/every {
		t.Errorf("only %d fault points: the plan does not reach the agent", points)
	}
}

// TestLeaseFaults lets operations of taking leases and giving them back fail, and lets the agent die there. The next agent has what
// the cluster gave last, once it is told again, and nothing is left when it is removed. TestLeaseFaults takes every eighth
// point, and begins with a random one of the first eight.
func TestLeaseFaults(t *testing.T) {
	nettest.Need(t)
	pods := []*ns.Netns{nettest.Pod(t), nettest.Pod(t), nettest.Pod(t)}
	for _, p := range pods {
		nettest.Run(t, p, "ip link set lo up") // as an ADD does, for good
	}
	before := oracle(t, pods)
	points := fault.Each(t, "leases", fault.Modes(), 1+rand.IntN(8), 8, func(newPlan func() *fault.Plan) {
		f := newFaultRun(t, newPlan(), pods)
		f.withLeases()
		f.end(before)
	})
	t.Logf("fault points covered: %d; residue: 0", points)
	if points < 10 {
		t.Errorf("only %d fault points: the plan does not reach the agent", points)
	}
}

// faultPairs lets somebody come in at a fault: a second DEL of each container, a drain,
// or a sweep. faultPairs takes every third point, and begins with a random one of the first three.
func faultPairs(t *testing.T, pods []*ns.Netns, before nettest.State) (points int) {
	first := rand.IntN(3)
	for name, scenario := range map[string]func(*faultRun){"ADD, DEL and GC": (*faultRun).verbs, "queue": (*faultRun).withQueue} {
		modes := []fault.Mode{fault.FailBefore, fault.FailAfter}
		points += fault.Each(t, name+", with somebody who comes in", modes, 1+first, 3, func(newPlan func() *fault.Plan) {
			f := newFaultRun(t, newPlan(), pods)
			var others sync.WaitGroup
			others.Add(1) // for the fault, which may surface in the engine's background
			f.plan.Beside = func(string) {
				go func() { defer others.Done(); f.comeIn() }() // comeIn must not keep the operation waiting
			}
			scenario(f)
			f.plan.Heal()
			if f.plan.Surfaced() != "" {
				others.Wait()
			}
			f.end(before)
		})
	}
	return points
}

// comeIn makes a request, or does a piece of the agent's work, while an operation fails.
func (f *faultRun) comeIn() {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	switch f.plan.N % 4 {
	case 0:
		f.Sweep(ctx)
	case 1:
		_ = f.drain.All(ctx)
	default:
		for _, c := range []string{"a", "b", "c"} {
			_, _, _ = f.Delete(ctx, key(c), false, now())
		}
	}
}

// oracle is what can be seen on the node and in the pods.
func oracle(t testing.TB, pods []*ns.Netns) nettest.State {
	all := nettest.Snapshot(t, nil).Without("sysctl")
	for _, p := range pods {
		all = all.And(nettest.Snapshot(t, p).Only("link", "address", "route"))
	}
	return all
}

// faultRun is a life of an agent in which one fault happens.
type faultRun struct {
	*rig
	pods  []*ns.Netns
	plan  *fault.Plan
	given map[netip.Addr]string // addresses by the container that got them
	up    bool
	last  config.Given // what the cluster gave last
}

func newFaultRun(t *testing.T, plan *fault.Plan, pods []*ns.Netns) *faultRun {
	f := &faultRun{rig: newRig(t), pods: pods, plan: plan, given: map[netip.Addr]string{}}
	f.cooldown = time.Hour
	return f
}

// begin starts an agent, under the plan if faulty. f.up says whether the start succeeded.
func (f *faultRun) begin(faulty bool) {
	f.decorate = nil
	if faulty {
		f.decorate = f.plan.Decorate
	}
	if err := f.open(); err != nil {
		f.t.Fatalf("opening: %v", err) // the plan fails no operation of open
	}
	f.up = f.Restore(f.t.Context()) == nil
}

// beginWithPods starts an agent without a fault and attaches pods a, b and c.
func (f *faultRun) beginWithPods() {
	f.begin(false)
	for i, c := range []string{"a", "b", "c"} {
		if err := f.attach(c, i, time.Minute); err != nil {
			f.t.Fatalf("before any fault: attaching %s: %v", c, err)
		}
	}
}

// verbs adds three pods and takes them away again in different ways.
func (f *faultRun) verbs() {
	f.begin(true)
	if !f.up {
		return
	}
	f.try("a", 0)
	f.try("b", 1)
	f.delete("a")
	f.try("c", 0) // in the netns that a had
	f.try("d", 2)
	f.GC(f.t.Context(), api.GCRequest{Network: "net", Valid: []api.GCValid{{ContainerID: "d", Ifname: "eth0"}}}, now())
	f.settle()
}

// afterRestart leaves a pod that is well, one whose link is gone, one that is
// releasing, and an unmade repair to an agent that starts under the plan.
func (f *faultRun) afterRestart() {
	f.beginWithPods()
	f.core.Engine.Close() // nothing is released any more
	leaving := f.index.Container("c")[0].Owner.ID
	must(f.t, f.core.Ledger.Commit(f.t.Context(), ledger.Releasing(leaving, time.Now())))
	for _, command := range []string{
		"ip link del " + f.List(key("b"))[0].HostVeth,
		"ip route del " + f.List(key("a"))[0].Addresses[0],
		"ip route del unreachable 10.88.0.0/24",
	} {
		nettest.Run(f.t, f.node.Here, command)
	}
	f.close()
	f.begin(true)
	if f.up {
		f.settle()
	}
}

// withQueue leaves deletions of three pods to an agent that starts under the plan. The plugin has cut
// off the first pod but not the second, and the ledger does not know the third. A successor of the
// first pod is attached in between.
func (f *faultRun) withQueue() {
	f.beginWithPods()
	link, addrs := f.linkOf("a")
	nettest.Run(f.t, f.node.Here, "ip link set "+link+" down")
	cut := f.deletion("a", link)
	cut.Addresses, cut.Cut = addrs, true
	f.enqueue(cut)
	f.enqueue(f.deletion("b", ""))
	link, addrs = f.linkOf("c")
	lost := f.deletion("c", link)
	lost.Addresses = addrs
	f.enqueue(lost)
	f.core.Engine.Close()
	must(f.t, f.core.Ledger.Commit(f.t.Context(), ledger.Forget(f.index.Container("c")[0].Owner.ID, time.Now().Add(-2*f.cooldown))))
	f.close()
	for _, a := range addrs { // the address's rest is over: the fault may come before the deletion of c
		delete(f.given, netip.MustParseAddr(a))
	}
	f.begin(true)
	if f.up {
		f.try("a", 0)
		f.settle()
	}
}

// withLeases gives blocks of a cluster's pools and takes them back, while a pod has an address of one, and none of another.
func (f *faultRun) withLeases() {
	f.poolless(`{"clusters":[{"name":"c","cluster":{"server":"http://127.0.0.1:1"}}],"contexts":[{"name":"c","context":{"cluster":"c"}}],"current-context":"c"}`)
	f.begin(true)
	if !f.up {
		return
	}
	give := func(leases ...string) {
		f.last = config.Given{Default: "blue"}
		for _, l := range leases {
			f.last.Leases = append(f.last.Leases, config.Lease{Pool: "blue", CIDR: netip.MustParsePrefix(l)})
		}
		ctx, cancel := f.plan.Context(f.t.Context())
		defer cancel()
		_ = f.ground.Give(ctx, f.last)
	}
	give("10.60.0.0/29", "fd00:60::/125")
	f.try("a", 0)
	give("10.60.0.0/29", "10.60.0.8/29", "fd00:60::/125")
	give("10.60.0.8/29", "fd00:60::/125") // a's block drains
	f.try("d", 2)
	give("10.60.0.16/29", "fd00:60::/125") // d's, too
	give("10.60.0.0/29", "10.60.0.24/29", "fd00:60::/125")
	f.delete("d")
	give("10.60.0.0/29", "fd00:60::/125") // nobody has had an address of the other one
}

// wantLeases gives what the cluster gave last once more, and then the ledger has that in force, and nothing else.
func (f *faultRun) wantLeases() {
	nettest.Eventually(f.t, "the leases to be in force", func() bool { return f.ground.Give(f.t.Context(), f.last) == nil })
	for _, b := range f.ground.Blocks() {
		if slices.Contains(f.last.Leases, b.Lease) == b.Drains {
			f.t.Errorf("the ledger has %+v; the cluster gave %v", b, f.last.Leases)
		}
	}
	if have := len(f.ground.Blocks()); have < len(f.last.Leases) {
		f.t.Errorf("the ledger has %d leases; the cluster gave %v", have, f.last.Leases)
	}
}

// poolless has the rig's agent be of a cluster with pools, and have no pool of its own.
func (r *rig) poolless(kubeconfig string) {
	r.t.Helper()
	r.pools = nil
	path := filepath.Join(r.t.(*testing.T).TempDir(), "kubeconfig")
	must(r.t, os.WriteFile(path, []byte(kubeconfig), 0o600))
	must(r.t, os.MkdirAll(filepath.Dir(r.root.Config()), 0o755))
	must(r.t, os.WriteFile(r.root.Config(), fmt.Appendf(nil, "kubernetes: {node: me, kubeconfig: %q, addresses: pools, routing: native}\n", path), 0o644))
}

// try adds a pod, which may fail or hang.
func (f *faultRun) try(container string, pod int) { _ = f.attach(container, pod, time.Second) }

// attach adds a pod, within limit; an address that the pod gets must be a new one.
func (f *faultRun) attach(container string, pod int, limit time.Duration) error {
	ctx, cancel := f.plan.Context(f.t.Context()) // when the program is dead nothing goes on any more
	defer cancel()
	ctx, cancel = context.WithTimeout(ctx, limit)
	defer cancel()
	req := request(container, f.pods[pod])
	if container == "b" || container == "c" { // the agent repairs b, and adopts c
		req = request(container, f.pods[pod], wishedPorts(container))
	}
	res, err := f.tryAddUntil(ctx, req)
	if err != nil {
		return err
	}
	for _, a := range addresses(res) {
		if other, twice := f.given[a]; twice {
			f.t.Errorf("%s was given to %s and to %s within its cooldown", a, other, container)
		}
		f.given[a] = container
	}
	return nil
}

// wishedPorts asks for host ports of a container's own, of both protocols, and for limits of
// bandwidth.
func wishedPorts(container string) string {
	port := 8000 + int(container[len(container)-1])
	return fmt.Sprintf(`"runtimeConfig":{"portMappings":[{"hostPort":%[1]d,"containerPort":80},{"hostPort":%[1]d,"containerPort":53,"protocol":"udp","hostIP":"192.0.2.1"}],`+
		`"bandwidth":{"ingressRate":8000000,"ingressBurst":80000,"egressRate":8000000,"egressBurst":80000}}`, port)
}

func (f *faultRun) delete(container string) {
	for range 2 { // a runtime repeats a DEL that failed
		if _, _, err := f.Delete(f.t.Context(), key(container), false, now()); err == nil {
			break
		}
	}
	f.settle()
}

// settle waits until no release is under way, or until the agent can never release what is left.
func (f *faultRun) settle() {
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); {
		if f.plan.IsDead() {
			return
		}
		busy := false
		for _, o := range f.core.Ledger.Owners() {
			busy = busy || !o.Wanted()
		}
		if !busy || f.plan.Mode == fault.FailForever && len(f.core.Engine.Owed("")) > 0 {
			return
		}
		ctx, cancel := context.WithTimeout(f.t.Context(), 5*time.Millisecond)
		f.core.Engine.Wait(ctx, f.ids()...)
		cancel()
	}
	f.t.Errorf("not settled: %v", f.core.Engine.Owed(""))
}

func (f *faultRun) ids() []hold.ID {
	var ids []hold.ID
	for _, o := range f.core.Ledger.Owners() {
		ids = append(ids, o.ID)
	}
	return ids
}

// end goes on after the fault, deletes everything and removes the agent. What the oracle sees
// then must be what it saw before.
func (f *faultRun) end(before nettest.State) {
	f.plan.Heal()
	if !f.up || f.plan.Mode.Kill() {
		f.close()
		f.begin(false)
		if !f.up {
			f.t.Error("the agent does not start again")
		}
	}
	if f.last.Leases != nil {
		f.wantLeases()
	}
	nettest.Eventually(f.t, "no deletion waits", func() bool {
		if err := f.drain.All(f.t.Context()); err != nil {
			f.t.Logf("draining: %v", err)
		}
		return f.queued() == 0
	})
	f.releaseAll()
	nettest.Eventually(f.t, "nothing is owed", func() bool { return len(f.core.Engine.Owed("")) == 0 })
	f.Sweep(f.t.Context()) // what a restart could not mend
	a, err := f.Audit(f.t.Context())
	if err != nil || len(a.Findings) > 0 {
		f.t.Errorf("audit: %v %+v", err, a.Findings)
	}
	if err := f.remove(context.Background()); err != nil {
		f.t.Errorf("removing: %v", err)
	}
	if left := f.core.Ledger.Owners(); len(left) > 0 {
		f.t.Errorf("left in the ledger: %v", left)
	}
	f.close()
	nettest.Same(f.t, before, oracle(f.t, f.pods), "residue")
}

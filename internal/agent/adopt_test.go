package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/attachment"
	"github.com/berth-net/berth/internal/deletions"
	"github.com/berth-net/berth/internal/engine"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/ipam"
	"github.com/berth-net/berth/internal/kinds/flows"
	"github.com/berth-net/berth/internal/ledger"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/rebuild"
	"github.com/berth-net/berth/internal/stamp"
)

// lose takes a rig's ledger away, as a disk does; and its instance as well, with
// the marker that has it, too.
func (r *rig) lose(instance bool) {
	r.t.Helper()
	r.close()
	files := []string{r.root.Ledger()}
	if instance {
		files = append(files, r.root.Instance(), r.root.Epoch())
	}
	for _, f := range files {
		must(r.t, os.Remove(f))
	}
}

// linkOf is the host veth of a container, and its addresses.
func (r *rig) linkOf(container string) (string, []string) {
	r.t.Helper()
	l := r.List(key(container))
	if len(l) != 1 {
		r.t.Fatalf("%s: %+v", container, l)
	}
	return l[0].HostVeth, l[0].Addresses
}

func (r *rig) hasLink(name string) bool {
	_, err := r.node.Conn.Link(name)
	return err == nil
}

// Agent and ledger are lost; what the runtime knows is enough for the next
// agent to delete the pod, and no other (aws-cni #2145: the agent away, teardown
// from prevResult).
func TestStatelessDeletion(t *testing.T) {
	for _, how := range []string{"queued", "by the API"} {
		t.Run(how, func(t *testing.T) {
			r := start(t)
			r.cooldown = time.Hour
			a, b := nettest.Pod(t), nettest.Pod(t)
			r.add(request("a", a))
			link, addrs := r.linkOf("a")
			r.add(request("b", b))
			other, _ := r.linkOf("b")
			lost := r.deletion("a", link)
			lost.Addresses = addrs
			second := r.deletion("b", other)
			r.enqueue(second) // or the agent refuses to begin a ledger
			if how == "queued" {
				r.enqueue(lost)
				r.enqueue(lost) // a runtime repeats it
				r.lose(false)
				r.bringUp()
			} else {
				r.enqueue(lost)
				s := r.pendingNames()
				r.lose(false)
				must(t, r.open())
				must(t, r.drain.Remove(s...))
				r.enqueue(second)
				must(t, r.Restore(t.Context()))
				if _, known, err := r.Delete(t.Context(), api.Filter{Network: "net", Container: "a", Ifname: "eth0", Link: link}, true, now()); err != nil || !known {
					t.Errorf("DEL: known %v, %v", known, err)
				}
				if _, known, err := r.Delete(t.Context(), api.Filter{Network: "net", Container: "a", Ifname: "eth0", Link: link}, true, now()); err != nil || known {
					t.Errorf("the same DEL again: known %v, %v", known, err)
				}
			}
			nettest.Eventually(t, "both are gone", func() bool { return len(r.index.All()) == 0 })
			if r.hasLink(link) || r.hasLink(other) {
				t.Error("a link is left")
			}
			r.wantQueued(0)
			resting := map[string]bool{}
			for _, x := range r.core.Ledger.Resting() {
				resting[x.Name.Name] = true
			}
			for _, x := range addrs {
				if !resting[x] {
					t.Errorf("%s does not rest: %v", x, resting)
				}
			}
			r.wantClean()
			must(t, r.drain.All(t.Context()))
		})
	}
}

func (r *rig) pendingNames() []string {
	pending, err := r.drain.Pending()
	must(r.t, err)
	var names []string
	for _, e := range pending {
		names = append(names, e.Name)
	}
	return names
}

// Both the ledger and the instance are lost: the links are found all the same. The agent
// does not begin anew over a pod whose deletion does not wait.
func TestStatelessDeletionOfFormerInstance(t *testing.T) {
	r := start(t)
	r.add(request("a", nettest.Pod(t)))
	r.add(request("b", nettest.Pod(t)))
	link, _ := r.linkOf("a")
	other, _ := r.linkOf("b")
	was := r.core.Instance
	must(t, r.removeNode())
	r.lose(true)
	for container, l := range map[string]string{"a": link, "b": other} {
		if err := r.open(); !errors.Is(err, rebuild.ErrOrphans) || !strings.Contains(err.Error(), was) {
			t.Errorf("begun anew, while the deletion of %s does not wait: %v", container, err)
		}
		r.enqueue(r.deletion(container, l))
	}
	r.bringUp()
	if r.core.Instance == was {
		t.Fatal("the instance is the same")
	}
	nettest.Eventually(t, "the links are gone", func() bool { return !r.hasLink(link) && !r.hasLink(other) })
	nettest.Eventually(t, "they are forgotten", func() bool { return len(r.index.All()) == 0 })
}

// removeNode gives back what the agent itself holds, while pods are attached.
func (r *rig) removeNode() error {
	for _, o := range r.core.Ledger.Owners() {
		if r.index.Get(o.ID) == nil {
			if err := r.core.Engine.Release(r.t.Context(), []hold.ID{o.ID}); err != nil {
				return err
			}
			if err := r.core.Engine.Wait(r.t.Context(), o.ID); err != nil {
				return err
			}
		}
	}
	return nil
}

// A deletion never touches a link whose alias names another key, however its
// name came into it (cilium #44463).
func TestDeletionSparesOthersLinks(t *testing.T) {
	r := start(t)
	r.add(request("a", nettest.Pod(t)))
	b := nettest.Pod(t)
	r.add(request("b", b))
	link, _ := r.linkOf("b")
	r.enqueue(r.deletion("unknown", link))
	must(t, r.drain.All(t.Context()))
	r.wantAttached("b")

	// The same of a link that the ledger does not know.
	stray := "bzzzzaaaaaaaaaa"
	nettest.Run(t, r.node.Here, "ip link add "+stray+" type veth peer name zz")
	t.Cleanup(func() { nettest.Command(r.node.Here, "ip", "link", "del", stray).Run() })
	for _, alias := range []string{"", "mine", stamp.Alias("zzzzzzzzzz", "aaaaaaaaaa", attachment.Key{Network: "net", ContainerID: "other", Ifname: "eth0"}, 0),
		stamp.Alias("zzzzzzzzzz", "aaaaaaaaab", attachment.Key{Network: "net", ContainerID: "x", Ifname: "eth0"}, 0)} {
		if out, err := nettest.Command(r.node.Here, "ip", "link", "set", stray, "alias", alias).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		r.enqueue(r.deletion("x", stray))
		must(t, r.drain.All(t.Context()))
		if !r.hasLink(stray) || len(r.index.Container("x")) > 0 {
			t.Errorf("a link with the alias %q was deleted as x's", alias)
		}
	}
	r.wantQueued(0)
}

// An address of a deletion that somebody else has by now stays theirs, with the
// traffic that the kernel remembers of it (cilium #46677: the old pod's DEL
// removed rules of the address's new owner).
func TestDeletionSparesAddressesOfOthers(t *testing.T) {
	r := newRig(t)
	r.cooldown = time.Hour
	r.begin()
	r.add(request("a", nettest.Pod(t)))
	_, addrs := r.linkOf("a")
	d := r.deletion("gone", "bzzzzaaaaaaaaaa")
	d.Started = r.began() - 1
	d.Addresses = append([]string{"10.88.0.77", "192.0.2.1", "no address"}, addrs...)
	r.enqueue(d)
	must(t, r.drain.All(t.Context()))
	nettest.Eventually(t, "it is done", func() bool { return len(r.index.Container("gone")) == 0 })
	if rests := r.core.Ledger.Resting(); len(rests) != 1 || rests[0].Name.Name != "10.88.0.77" {
		t.Errorf("the addresses that rest are %v", rests)
	}
	r.wantAttached("a")
	r.wantClean()
}

// An adopted deletion forgets the traffic of no address that is somebody else's by
// the time it succeeds: it has the flows of an address only with the address's
// name, and one that rests is rinsed before it is given anew.
func TestOwedAdoptionSparesTheTrafficOfHeirs(t *testing.T) {
	for name, cooldown := range map[string]time.Duration{"a rest": time.Second, "no rest": 0} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, "default=10.88.0.1/32")
			r.cooldown = cooldown
			b := newBreaker()
			var astray atomic.Pointer[string]
			r.decorate = func(l engine.Ledger, ks hold.Kinds) (engine.Ledger, hold.Kinds) {
				for i, k := range ks {
					if k.Name() != flows.KindName {
						continue
					}
					ks[i].Release = func(ctx context.Context, hs []hold.Hold) []error {
						for _, h := range hs {
							for _, x := range h.Spec.(*flows.Spec).Addresses {
								if holder, held := r.core.Ledger.Holder(ipam.Name(x)); held && holder != h.Owner {
									what := fmt.Sprintf("the traffic of %s, which %s has, is forgotten for %s", x, holder, h.Owner)
									astray.Store(&what)
								}
							}
						}
						return k.Release(ctx, hs)
					}
				}
				return b.decorate(l, ks)
			}
			r.begin()
			r.add(request("c", nettest.Pod(t)))
			link, addrs := r.linkOf("c")
			r.del("c", true) // the address rests, or is due
			d := r.deletion("c", link)
			d.Addresses, d.Started = addrs, r.began()-1
			b.set(true, "release", flows.KindName, "")
			r.enqueue(d) // the runtime repeats it
			must(t, r.drain.All(t.Context()))
			pod := nettest.Pod(t)
			if _, err := r.tryAdd(request("heir", pod)); cooldown > 0 { // else the adopted owner may have the address's name
				wantError(t, err, 100, "")
				nettest.Eventually(t, "the address is given anew", func() bool {
					_, err := r.tryAdd(request("heir", pod))
					return err == nil
				})
			}
			b.heal()
			r.core.Engine.Retry()
			nettest.Eventually(t, "nothing is owed", func() bool { return len(r.core.Engine.Owed("")) == 0 })
			if what := astray.Load(); what != nil {
				t.Error(*what)
			}
		})
	}
}

// startLost starts a rig that has lost what it knows of a pod, with
// its ledger decorated.
func startLost(t *testing.T, decorate func(engine.Ledger) engine.Ledger) (r *rig, d deletions.Record) {
	t.Helper()
	r = start(t)
	r.add(request("a", nettest.Pod(t)))
	link, addrs := r.linkOf("a")
	must(t, r.removeNode())
	r.lose(true)
	r.decorate = func(l engine.Ledger, ks hold.Kinds) (engine.Ledger, hold.Kinds) { return decorate(l), ks }
	d = r.deletion("a", link)
	d.Addresses = addrs
	r.enqueue(d) // or the agent refuses to begin a root over the pod
	must(t, r.open())
	must(t, r.drain.Remove(r.pendingNames()...))
	must(t, r.Restore(t.Context()))
	return r, d
}

// wantAddressesBack checks that nobody has addresses, and that IPAM knows.
func (r *rig) wantAddressesBack() {
	r.t.Helper()
	nettest.Eventually(r.t, "nobody is left", func() bool { return len(r.index.All()) == 0 })
	for _, p := range r.ground.Pools.Stats(r.core.Clock.Now()) {
		for _, c := range p.CIDRs {
			if c.Used > 0 {
				r.t.Errorf("%d addresses of %s are in use, and nobody has them", c.Used, c.CIDR)
			}
		}
	}
}

// Of two deletions at once of a pod that no ledger knows one adopts it, and the
// other waits until that is committed.
func TestTwoAdoptAtOnce(t *testing.T) {
	var between func()
	r, d := startLost(t, func(l engine.Ledger) engine.Ledger { return &busyLedger{l, &between} })
	between = func() { // one has looked, and not committed
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		f := key("a")
		f.Link = d.Link
		_, _, err := r.Delete(ctx, f, false, now())
		t.Logf("the other one: %v", err)
	}
	must(t, r.undertaken(d))
	r.wantAddressesBack()
	if r.hasLink(d.Link) {
		t.Error("the link is left")
	}
}

// brokenLedger fails a commit, once, before or after its effect.
type brokenLedger struct {
	engine.Ledger
	before, after error
}

func (l *brokenLedger) Commit(ctx context.Context, ops ...ledger.Op) error {
	before, after := l.before, l.after
	l.before, l.after = nil, nil
	if before != nil {
		return before
	}
	return errors.Join(after, l.Ledger.Commit(ctx, ops...))
}

// An adoption whose commit fails gives back what it has claimed, unless the commit
// had its effect.
func TestAdoptionThatFails(t *testing.T) {
	for _, effect := range []bool{false, true} {
		t.Run(fmt.Sprint("with effect ", effect), func(t *testing.T) {
			var broken *brokenLedger
			r, d := startLost(t, func(l engine.Ledger) engine.Ledger { broken = &brokenLedger{Ledger: l}; return broken })
			if effect {
				broken.after = errors.New("broken")
			} else {
				broken.before = errors.New("broken")
			}
			if err := r.undertaken(d); err == nil {
				t.Error("it succeeds")
			}
			if !effect {
				r.wantAddressesBack()
			}
			must(t, r.undertaken(d))
			r.wantAddressesBack()
			if r.hasLink(d.Link) {
				t.Error("the link is left")
			}
		})
	}
}

// Of keys that are too long for an alias, several have the same. A DEL of one that
// names the link of another does not mean that: the ledger has both in full.
func TestNamesTooLongForAnAlias(t *testing.T) {
	r := start(t)
	long := strings.Repeat("c", 120)
	config := fmt.Appendf(nil, `{"cniVersion":"1.1.0","type":"berth-cni","name":%q}`, strings.Repeat("n", 120))
	for _, container := range []string{long + "a", long + "b"} {
		req := request(container, nettest.Pod(t))
		req.Config = config
		r.add(req)
	}
	other := r.List(api.Filter{Container: long + "b"})[0]
	d := r.deletion(long+"a", other.HostVeth)
	d.Network = other.Network
	r.enqueue(d)
	must(t, r.drain.All(t.Context()))
	if l := r.List(api.Filter{Container: long + "a"}); len(l) > 0 && l[0].State == api.StateAttached {
		t.Errorf("what was deleted: %+v", l)
	}
	if l := r.List(api.Filter{Container: long + "b"}); len(l) != 1 || l[0].State != api.StateAttached {
		t.Errorf("what was not deleted: %+v", l)
	}
}

// A state folder is lost, and with it who had which address. The first agent of the next
// one dies before it has done the deletions that wait. The agent after it lets their
// addresses rest all the same: they began before the folder did.
func TestDeletionsOfALostFolderAfterACrash(t *testing.T) {
	r := newRig(t)
	r.cooldown = time.Hour
	r.begin()
	d := r.deletion("gone", "bzzzzaaaaaaaaaa")
	d.Started, d.Addresses = r.began()-1, []string{"10.88.0.77"}
	r.restart()
	r.enqueue(d)
	must(t, r.drain.All(t.Context()))
	nettest.Eventually(t, "it is done", func() bool { return len(r.index.Container("gone")) == 0 })
	if rests := r.core.Ledger.Resting(); len(rests) != 1 || rests[0].Name.Name != "10.88.0.77" {
		t.Errorf("the addresses that rest are %v", rests)
	}
	d.Started = r.node.Boottime() // a later one tells of nothing that the ledger does not know
	d.Addresses = []string{"10.88.0.78"}
	r.enqueue(d)
	must(t, r.drain.All(t.Context()))
	if rests := r.core.Ledger.Resting(); len(rests) != 1 {
		t.Errorf("the addresses that rest are %v", rests)
	}
	r.wantClean()
}

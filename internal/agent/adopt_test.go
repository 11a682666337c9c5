package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/attachment"
	"github.com/berth-net/berth/internal/cni"
	"github.com/berth-net/berth/internal/deletions"
	"github.com/berth-net/berth/internal/engine"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/ipam"
	"github.com/berth-net/berth/internal/kernel"
	"github.com/berth-net/berth/internal/kernel/nft"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/kinds/flows"
	"github.com/berth-net/berth/internal/ledger"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/rebuild"
	"github.com/berth-net/berth/internal/root"
	"github.com/berth-net/berth/internal/stamp"
)

// lose takes a rig's ledger away, as a broken disk does; with instance, also the instance's id,
// and the marker that repeats the id.
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

// linkOf returns the host veth and the addresses of a container's attachment.
func (r *rig) linkOf(container string) (string, []string) {
	r.t.Helper()
	l := r.List(key(container))
	if len(l) != 1 {
		r.t.Fatalf("%s: %+v", container, l)
	}
	return l[0].HostVeth, l[0].Addresses
}

func (r *rig) hasLink(name string) bool {
	r.t.Helper()
	_, err := r.node.Conn.Link(name)
	if err != nil && !errors.Is(err, kernel.ErrNotFound) {
		r.t.Fatalf("looking for link %s: %v", name, err) // after close, for example, the error tells nothing of the link
	}
	return err == nil
}

// The agent and its ledger are lost. What the runtime knows is enough for the next agent to delete
// this pod and no other pod (aws-cni #2145: the agent away, teardown from prevResult).
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

// Both the ledger and the instance are lost: the agent finds the links all the same. It begins
// no new ledger while a pod is there whose deletion is not queued.
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

// The table of a lost agent maps host ports to the address of a pod that is gone. The address's next
// pod must get nothing of what comes to these ports, and another pod can have the ports.
func TestHostPortsOfLostAgent(t *testing.T) {
	const lost, gone, other = "zzzzlost22", "aaaaaaaaaa", "aaaaaaaaab"
	start := func(r *rig) { r.restart() }
	sweep := func(r *rig) { r.Sweep(t.Context()) }
	drain := func(r *rig) { // a deletion that a running agent finds, without a sweep
		r.enqueue(r.deletion("gone", stamp.Link(lost, gone)))
		must(t, r.drain.All(t.Context()))
		nettest.Eventually(t, "the pod is forgotten", func() bool { return len(r.index.All()) == 0 })
	}
	for _, test := range []struct {
		name   string
		links  []hold.ID
		pod    string // to which the ports lead
		served bool
		do     func(*rig)
		table  bool // whether the lost agent's table stays
		left   []hold.ID
	}{
		{"a start", nil, "10.88.0.1", false, start, false, nil},
		{"a sweep", nil, "10.88.0.1", false, sweep, false, nil},
		{"a deletion that waited", []hold.ID{gone}, "10.88.0.1", false, drain, false, nil},
		{"a pod is left", []hold.ID{other}, "10.88.0.1", false, sweep, true, []hold.ID{other}},
		{"its agent runs", nil, "10.88.0.1", true, sweep, true, []hold.ID{gone, other}},
		{"the address is in no pool", nil, "10.99.0.1", false, sweep, true, []hold.ID{gone, other}},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := newRig(t)
			r.begin()
			here, err := ns.Open("/proc/thread-self/ns/net")
			must(t, err)
			t.Cleanup(func() { must(t, here.Close()) })
			tables := nft.Open(here)
			must(t, tables.Replace(nft.Ruleset{Instance: lost, CutLow: 1<<30 + 2, CutHigh: 1<<30 + 1023, Live: 1 << 30, HostPorts: true}))
			t.Cleanup(func() { must(t, tables.Delete(lost)) })
			for i, owner := range []hold.ID{gone, other} {
				must(t, tables.Map(lost, []nft.Port{{Owner: string(owner), Mapping: nft.Mapping{
					Protocol: "tcp", Host: netip.AddrPortFrom(netip.IPv4Unspecified(), uint16(8080+i)), Pod: netip.AddrPortFrom(netip.MustParseAddr(test.pod), 80),
				}}}))
			}
			for _, id := range test.links {
				name := stamp.Link(lost, id)
				alias := stamp.Alias(lost, id, attachment.Key{Network: "net", ContainerID: "gone", Ifname: "eth0"}, 0)
				nettest.Run(t, here, "ip link add "+name+" type veth peer name zz"+string(id))
				ip := nettest.Program(t, "ip")
				t.Cleanup(func() { _ = nettest.Command(here, ip, "link", "del", name).Run() })
				if out, err := nettest.Command(here, ip, "link", "set", name, "alias", alias).CombinedOutput(); err != nil {
					t.Fatalf("%v: %s", err, out)
				}
			}
			if test.served {
				f, err := os.OpenFile(root.Lock(lost, r.node.Netns.Ino), os.O_RDWR|os.O_CREATE, 0o600)
				must(t, err)
				t.Cleanup(func() { os.Remove(f.Name()); f.Close() })
				must(t, unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB))
			}
			test.do(r)
			all, err := r.node.OtherPorts()
			must(t, err)
			mapped, there := all[stamp.Table(lost)]
			var left []hold.ID
			for _, m := range mapped {
				left = append(left, hold.ID(m.Owner))
			}
			slices.Sort(left)
			if there != test.table || !slices.Equal(left, test.left) {
				t.Errorf("the table is there: %t, with ports of %v; want %t, %v", there, left, test.table, test.left)
			}
		})
	}
}

// removeNode gives back what the agent itself holds, while pods are attached. Their pools' routes, which wait for them, somebody else takes.
func (r *rig) removeNode() error {
	for _, family := range []string{"-4", "-6"} {
		nettest.Run(r.t, nil, "ip "+family+" route flush type unreachable proto 98")
	}
	for _, o := range r.core.Ledger.Owners() {
		if r.index.Get(o.ID) == nil && len(o.NamesIn("cidr")) == 0 {
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

// A deletion never touches a link whose alias names another key, even if the deletion names
// this link (cilium #44463).
func TestDeletionSparesOthersLinks(t *testing.T) {
	r := start(t)
	r.add(request("a", nettest.Pod(t)))
	b := nettest.Pod(t)
	r.add(request("b", b))
	link, _ := r.linkOf("b")
	r.enqueue(r.deletion("unknown", link))
	must(t, r.drain.All(t.Context()))
	r.wantAttached("b")

	// The same for a link that the ledger does not know.
	stray := "bzzzzaaaaaaaaaa"
	nettest.Run(t, r.node.Here, "ip link add "+stray+" type veth peer name zz")
	t.Cleanup(func() { nettest.Command(r.node.Here, nettest.Program(t, "ip"), "link", "del", stray).Run() })
	for _, alias := range []string{"", "mine", stamp.Alias("zzzzzzzzzz", "aaaaaaaaaa", attachment.Key{Network: "net", ContainerID: "other", Ifname: "eth0"}, 0),
		stamp.Alias("zzzzzzzzzz", "aaaaaaaaab", attachment.Key{Network: "net", ContainerID: "x", Ifname: "eth0"}, 0)} {
		if out, err := nettest.Command(r.node.Here, nettest.Program(t, "ip"), "link", "set", stray, "alias", alias).CombinedOutput(); err != nil {
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

// A deletion names an address that another pod has by now. The address stays with this pod, and
// the kernel keeps its tracked flows (cilium #46677: the old pod's DEL removed rules of the
// address's new owner).
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

// When the deletion of an adopted pod succeeds, an address may have another owner: then the
// deletion leaves the flows of this address alone. The adopted owner holds the flows of an address
// only together with the address's name, and the agent rinses an address that rests before another
// pod gets the address.
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

// startLost starts a rig with a decorated ledger. The rig has lost what it knew of pod a, and d is
// a deletion of this pod.
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

// wantAddressesBack checks that no attachment is left, and that IPAM counts no address as in use.
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

// Two deletions come at once for a pod that no ledger knows. One of them adopts the pod, and
// the other one waits until the adoption is committed.
func TestTwoAdoptAtOnce(t *testing.T) {
	var between func()
	r, d := startLost(t, func(l engine.Ledger) engine.Ledger { return &busyLedger{l, &between} })
	between = func() { // the first deletion has looked, and not committed
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

// brokenLedger fails its next commit, once: with `before`, ahead of the commit's effect, or with
// `after`, behind the effect.
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

// An adoption whose commit fails gives back the addresses that it has claimed, unless the
// commit had its effect.
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

// Several keys that are too long for an alias have the same alias. A DEL that names one key, and the
// link of another key's attachment, does not mean that attachment: the ledger has both keys in full.
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

// After a rebuild a CHECK and a repeated ADD know a pod whose names are longer than its link's
// alias holds, and the ledger then has its whole key. Another pod, or another interface of the same
// pod, whose names begin as the alias says, is not that pod.
func TestNamesTooLongForAnAliasAfterARebuild(t *testing.T) {
	for _, size := range []int{110, 128} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			r := start(t)
			named := func(container string, pod *ns.Netns, keys ...string) api.AddRequest {
				req := request(container, pod)
				req.Config = fmt.Appendf(nil, `{"cniVersion":"1.1.0","type":"berth-cni","name":%q%s}`, strings.Repeat("n", size), strings.Join(append([]string{""}, keys...), ","))
				return req
			}
			long, pod, other := strings.Repeat("c", size), nettest.Pod(t), nettest.Pod(t)
			first := r.add(named(long, pod))
			prev, err := json.Marshal(first)
			must(t, err)
			r.lose(false)
			made, err := r.rebuild()
			must(t, err)
			if len(made.Pods) != 1 || made.Pods[0].Record.Ifname == "eth0" {
				t.Fatalf("rebuilt: %+v", made.Pods)
			}
			r.bringUp()

			check := func(container string, in *ns.Netns, ifname string) error {
				req := named(container, in, `"prevResult":`+string(prev))
				req.Ifname = ifname
				return r.Check(t.Context(), req, now())
			}
			for range 2 {
				must(t, check(long, pod, "eth0"))
			}
			wantError(t, check(long, pod, "eth1"), 11, "cannot tell")
			wantError(t, check(long, other, "eth0"), cni.CodeUnknown, "is not attached")
			nettest.Run(t, pod, "ip link set eth0 mtu 1300")
			wantError(t, check(long, pod, "eth0"), 11, "cannot tell")
			nettest.Run(t, pod, "ip link set eth0 mtu 1500")

			second := named(long, pod)
			second.Ifname = "eth1"
			resSecond := r.add(second)
			if told(resSecond) == told(first) {
				t.Errorf("another interface of the pod is taken for the first one: %s", told(resSecond))
			}
			for range 2 {
				if again := r.add(named(long, pod)); told(again) != told(first) {
					t.Errorf("the ADD again answers %s, and at first %s", told(again), told(first))
				}
				r.restart()
			}
			must(t, check(long, pod, "eth0"))
			wantError(t, check(long, pod, "eth1"), cni.CodeCheck, "")
			for ifname, res := range map[string]string{"eth0": told(first), "eth1": told(resSecond)} {
				l := r.List(api.Filter{Container: long, Ifname: ifname})
				if len(l) != 1 || l[0].State != api.StateAttached || !strings.Contains(res, l[0].Addresses[0]) {
					t.Errorf("%s, with %s, is listed as %+v", ifname, res, l)
				}
			}
			r.wantClean()
		})
	}
}

// A state folder is lost, and with it the record of who had which address. The first agent of
// the new folder dies before it has done the queued deletions. The next agent lets the
// addresses of these deletions rest all the same, because the deletions began before the folder
// was made.
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

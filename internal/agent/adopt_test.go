package agent

import (
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/attachment"
	"github.com/berth-net/berth/internal/deletions"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/nettest"
)

// lose takes a rig's ledger away, as a disk does; and its instance as well, with
// the marker that has it, too.
func (r *rig) lose(instance bool) {
	r.t.Helper()
	r.close()
	files := []string{r.root.Ledger()}
	if instance {
		files = append(files, r.root.Instance(), filepath.Join(r.root.Run(), markerName))
	}
	for _, f := range files {
		if err := os.Remove(f); err != nil {
			r.t.Fatal(err)
		}
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
	_, err := r.conn.Link(name)
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
				if err := r.open(); err != nil {
					t.Fatal(err)
				}
				if err := r.queue.Remove(s...); err != nil {
					t.Fatal(err)
				}
				r.enqueue(second)
				if err := r.Restore(t.Context()); err != nil {
					t.Fatal(err)
				}
				if _, known, err := r.Delete(t.Context(), api.Filter{Network: "net", Container: "a", Ifname: "eth0", Link: link}, true, now()); err != nil || !known {
					t.Errorf("DEL: known %v, %v", known, err)
				}
				if _, known, err := r.Delete(t.Context(), api.Filter{Network: "net", Container: "a", Ifname: "eth0", Link: link}, true, now()); err != nil || known {
					t.Errorf("the same DEL again: known %v, %v", known, err)
				}
			}
			nettest.Eventually(t, "both are gone", func() bool { return len(r.index.all()) == 0 })
			if r.hasLink(link) || r.hasLink(other) {
				t.Error("a link is left")
			}
			if n := r.queued(); n > 0 {
				t.Errorf("%d deletions wait", n)
			}
			resting := map[string]bool{}
			for _, x := range r.ledger.Resting() {
				resting[x.Name.Name] = true
			}
			for _, x := range addrs {
				if !resting[x] {
					t.Errorf("%s does not rest: %v", x, resting)
				}
			}
			r.wantClean()
			if err := r.Drain(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

func (r *rig) pendingNames() []string {
	pending, err := r.queue.Pending()
	if err != nil {
		r.t.Fatal(err)
	}
	var names []string
	for _, e := range pending {
		names = append(names, e.Name)
	}
	return names
}

// Both the ledger and the instance are lost: the link is found all the same.
func TestStatelessDeletionOfFormerInstance(t *testing.T) {
	r := start(t)
	r.add(request("a", nettest.Pod(t)))
	r.add(request("b", nettest.Pod(t)))
	link, _ := r.linkOf("a")
	other, _ := r.linkOf("b")
	was := r.instance
	if err := r.removeNode(); err != nil {
		t.Fatal(err)
	}
	r.lose(true)
	r.bringUp()
	if r.instance == was {
		t.Fatal("the instance is the same")
	}
	for container, l := range map[string]string{"a": link, "b": other} {
		r.enqueue(r.deletion(container, l))
	}
	if err := r.Drain(t.Context()); err != nil {
		t.Error(err)
	}
	nettest.Eventually(t, "the links are gone", func() bool { return !r.hasLink(link) && !r.hasLink(other) })
	nettest.Eventually(t, "they are forgotten", func() bool { return len(r.index.all()) == 0 })
}

// removeNode gives back what the agent itself holds, while pods are attached.
func (r *rig) removeNode() error {
	for _, o := range r.ledger.Owners() {
		if r.index.get(o.ID) == nil {
			if err := r.engine.Release(r.t.Context(), []hold.ID{o.ID}); err != nil {
				return err
			}
			if err := r.engine.Wait(r.t.Context(), o.ID); err != nil {
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
	if err := r.Drain(t.Context()); err != nil {
		t.Error(err)
	}
	r.wantAttached("b")

	// The same of a link that the ledger does not know.
	stray := "bzzzzaaaaaaaaaa"
	nettest.Run(t, r.here, "ip link add "+stray+" type veth peer name zz")
	t.Cleanup(func() { nettest.Command(r.here, "ip", "link", "del", stray).Run() })
	for _, alias := range []string{"", "mine", attachment.Alias("zzzzzzzzzz", "aaaaaaaaaa", attachment.Key{Network: "net", ContainerID: "other", Ifname: "eth0"}),
		attachment.Alias("zzzzzzzzzz", "aaaaaaaaab", attachment.Key{Network: "net", ContainerID: "x", Ifname: "eth0"})} {
		if out, err := nettest.Command(r.here, "ip", "link", "set", stray, "alias", alias).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		r.enqueue(r.deletion("x", stray))
		if err := r.Drain(t.Context()); err != nil {
			t.Error(err)
		}
		if !r.hasLink(stray) || len(r.index.container("x")) > 0 {
			t.Errorf("a link with the alias %q was deleted as x's", alias)
		}
	}
	if n := r.queued(); n > 0 {
		t.Errorf("%d deletions wait", n)
	}
}

// An address of a deletion that somebody else has by now stays theirs, with the
// traffic that the kernel remembers of it (cilium #46677: the old pod's DEL
// removed rules of the address's new owner).
func TestDeletionSparesAddressesOfOthers(t *testing.T) {
	r := start(t)
	r.cooldown = time.Hour
	r.add(request("a", nettest.Pod(t)))
	_, addrs := r.linkOf("a")
	d := r.deletion("gone", "bzzzzaaaaaaaaaa")
	d.Addresses = append([]string{"10.88.0.77", "192.0.2.1", "no address"}, addrs...)
	w := r.plan([]deletions.Record{d})
	if len(w.adopted) != 1 || len(w.errs) > 0 {
		t.Fatalf("%+v", w)
	}
	names, _ := r.adopting.Load(w.adopted[0])
	if have := names.([]netip.Addr); len(have) != 1 || have[0].String() != "10.88.0.77" {
		t.Errorf("adopted are the addresses %v", have)
	}
	r.disown(w.adopted)
	r.enqueue(d)
	if err := r.Drain(t.Context()); err != nil {
		t.Error(err)
	}
	nettest.Eventually(t, "it is done", func() bool { return len(r.index.container("gone")) == 0 })
	r.wantAttached("a")
	r.wantClean()
}

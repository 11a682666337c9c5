package agent

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/api/client"
	"github.com/berth-net/berth/internal/attachment"
	"github.com/berth-net/berth/internal/boottime"
	"github.com/berth-net/berth/internal/daemon/server"
	"github.com/berth-net/berth/internal/deletions"
	"github.com/berth-net/berth/internal/engine"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/mend"
	"github.com/berth-net/berth/internal/nettest"
)

// deletion is a DEL of a container's eth0, as the plugin writes it down now.
func (r *rig) deletion(container, link string) deletions.Record {
	return deletions.Record{
		Network: "net", Container: container, Ifname: "eth0", Link: link,
		Boot: r.node.Boot, Started: boottime.Now(), Reason: "test",
	}
}

func (r *rig) enqueue(d deletions.Record) {
	r.t.Helper()
	must(r.t, deletions.Write(r.root, d))
}

// undertaken does a deletion as a drain does, without its file.
func (r *rig) undertaken(d deletions.Record) error {
	ids, err := r.drain.Promise(r.t.Context(), d)
	return errors.Join(err, r.core.Engine.Depart(r.t.Context(), ids))
}

// queued returns how many deletions wait.
func (r *rig) queued() int {
	r.t.Helper()
	s, err := deletions.Look(r.root)
	must(r.t, err)
	return len(s.Pending)
}

func (r *rig) wantQueued(want int) {
	r.t.Helper()
	if n := r.queued(); n != want {
		r.t.Errorf("%d deletions wait, want %d", n, want)
	}
}

func (r *rig) wantGone(container string) {
	r.t.Helper()
	nettest.Eventually(r.t, container+" is gone", func() bool { return len(r.List(key(container))) == 0 })
}

func (r *rig) wantAttached(container string) {
	r.t.Helper()
	if l := r.List(key(container)); len(l) != 1 || l[0].State != api.StateAttached {
		r.t.Errorf("%s, of which nothing was deleted: %+v", container, l)
	}
}

// Deletions that wait are done at the start, before anything is restored: a pod
// that its plugin has cut off is not set up again (cilium #39370, #22067).
func TestDrainAtStart(t *testing.T) {
	r := start(t)
	for _, c := range []string{"a", "b", "c", "d"} {
		r.add(request(c, nettest.Pod(t)))
	}
	link := r.List(key("a"))[0].HostVeth
	r.enqueue(r.deletion("a", link))
	r.enqueue(r.deletion("b", ""))
	r.enqueue(r.deletion("c", r.List(key("d"))[0].HostVeth)) // the link of d, a wrong one
	r.enqueue(r.deletion("unknown", ""))
	nettest.Run(t, r.node.Here, "ip link set "+link+" down")
	var drifts int
	r.observe = func(kind, op string, _ time.Duration, _ int, _ error) {
		if kind == "link" && op == "acquire" {
			drifts++
		}
	}
	r.restart()
	if drifts > 0 {
		t.Errorf("%d links were set up again", drifts)
	}
	r.wantGone("a")
	r.wantGone("b")
	r.wantGone("c")
	r.wantAttached("d")
	r.wantQueued(0)
	r.wantClean()
}

// If the agent cannot read the deletions that were set aside, it starts all the same, and does
// the deletions that wait.
func TestStartWithoutWhatWasSetAside(t *testing.T) {
	r := start(t)
	r.add(request("a", nettest.Pod(t)))
	r.enqueue(r.deletion("a", ""))
	must(t, os.WriteFile(filepath.Join(deletions.Path(r.root), "damaged"), nil, 0o600)) // a file where the agent wants a folder
	r.restart()
	r.wantGone("a")
	must(t, os.Remove(filepath.Join(deletions.Path(r.root), "damaged")))
	r.wantQueued(0)
	r.wantClean()
}

// The agent notices a deletion that a plugin writes while the agent runs, or starts.
func TestDrainOnEvent(t *testing.T) {
	r := start(t)
	r.add(request("a", nettest.Pod(t)))
	r.add(request("b", nettest.Pod(t)))
	r.enqueue(r.deletion("a", ""))
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); r.drain.Keep(ctx) }()
	r.wantGone("a")
	r.enqueue(r.deletion("b", ""))
	r.wantGone("b")
	nettest.Eventually(t, "nothing waits", func() bool { return r.queued() == 0 })
	stop()
	<-ended
}

// An ADD comes for a place in the pod whose present attachment has a queued deletion. The agent
// does that deletion first: the plugin has promised it, and so the ADD of the next container is
// no error (found by the kill loop of test/crash).
func TestAddDrainsWhoHasItsPlace(t *testing.T) {
	r := start(t)
	pod := nettest.Pod(t)
	r.add(request("a", pod))
	_, err := r.tryAdd(request("b", pod))
	wantError(t, err, 101, "belongs to attachment")
	r.enqueue(r.deletion("a", ""))
	r.add(request("b", pod))
	r.wantGone("a")
	r.wantAttached("b")
	r.wantQueued(0)
	r.wantClean()
}

// An ADD first does the queued deletion of its own key. The deletion does not hit the new pod,
// neither now nor when the agent does it again.
func TestAddDrainsItsKey(t *testing.T) {
	r := start(t)
	pod := nettest.Pod(t)
	r.add(request("a", pod))
	r.add(request("b", nettest.Pod(t)))
	d := r.deletion("a", "")
	former := r.id("a")
	r.enqueue(d)
	r.enqueue(r.deletion("b", ""))
	r.add(request("a", pod))
	must(t, r.core.Engine.Wait(t.Context(), former)) // ADD waits for its link alone
	r.wantQueued(1)                                  // that of the other key
	r.wantAttached("a")
	r.enqueue(d) // as after a crash between the commit and the removal
	must(t, r.drain.All(t.Context()))
	r.wantAttached("a")
	for _, to := range addresses(r.add(request("c", nettest.Pod(t)))) {
		nettest.Ping(t, pod, to)
	}
}

// beside calls `do` once: when the next ADD is about to make its link.
func (r *rig) beside(do func()) {
	var once sync.Once
	r.decorate = change("link", func(k *hold.Kind) {
		acquire := k.Acquire
		k.Acquire = func(ctx context.Context, h hold.Hold) error {
			once.Do(do)
			return acquire(ctx, h)
		}
	})
}

// A deletion is queued while its pod's ADD is under way: the plugin found no link to cut off,
// and has answered success. Before the ADD sets its link up, the ADD looks into the queue again, whether
// or not somebody drains the queue, and fails: the pod is never connected, however long the commit of
// its deletion takes. An ADD that cannot look into the queue fails, too.
func TestDeletionIsQueuedDuringItsAdd(t *testing.T) {
	for name, test := range map[string]struct {
		spoil func(t *testing.T, r *rig) (heal func())
		says  string
	}{
		"as usual": {func(*testing.T, *rig) func() { return func() {} }, "a deletion of the same attachment waits, or may wait"},
		"the queue cannot be read": {func(t *testing.T, r *rig) func() {
			dir, file := deletions.Path(r.root), deletions.Path(r.root)+".file"
			must(t, os.WriteFile(file, nil, 0o600))
			swap := func() { // in one step: the queue's watcher makes the folder anew if it finds nothing there
				must(t, unix.Renameat2(unix.AT_FDCWD, dir, unix.AT_FDCWD, file, unix.RENAME_EXCHANGE))
			}
			swap()
			return swap
		}, "a deletion of the same attachment waits, or may wait"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			heal := func() {}
			r.beside(func() {
				r.enqueue(r.deletion("c", ""))
				nettest.Eventually(t, "it to be told of", func() bool { return !r.drain.Quiet() })
				heal = test.spoil(t, r)
			})
			beside := r.decorate
			r.decorate = func(l engine.Ledger, ks hold.Kinds) (engine.Ledger, hold.Kinds) {
				return change("link", func(k *hold.Kind) {
					acquire := k.Acquire
					k.Acquire = func(ctx context.Context, h hold.Hold) error {
						err := acquire(ctx, h)
						if !errors.Is(err, hold.ErrGoing) || !errors.Is(err, hold.ErrUnused) {
							t.Errorf("the link has been up: %v", err)
						}
						return err
					}
				})(beside(l, ks))
			}
			r.begin()
			_, err := r.tryAdd(request("c", nettest.Pod(t)))
			wantError(t, err, 11, test.says)
			heal()
			r.wantGone("c")
			must(t, r.drain.All(t.Context()))
			r.wantClean()
		})
	}
}

// Nobody can look into the queue's folder. As long as nothing new can be in it, no deletion of an
// attachment waits; afterwards nobody can tell.
func TestGoingBesideQueueThatFails(t *testing.T) {
	r := start(t)
	r.add(request("c", nettest.Pod(t)))
	must(t, r.drain.All(t.Context()))
	o := r.index.Get(r.id("c")).Owner
	// The agent takes no folder that others can write into, and cannot make this folder private.
	must(t, unix.Mount("none", deletions.Path(r.root), "tmpfs", unix.MS_RDONLY, "mode=777"))
	unmount := sync.OnceFunc(func() { must(t, unix.Unmount(deletions.Path(r.root), unix.MNT_DETACH)) })
	t.Cleanup(unmount)
	if err := r.drain.Answers(); err == nil {
		t.Error("it looks into a folder that others can write into")
	}
	if going, err := r.drain.Going(o.ID); going || err != nil {
		t.Errorf("nothing new is in the queue: %v, %v", going, err)
	}
	unmount()
	file := deletions.Path(r.root) + ".file"
	must(t, os.WriteFile(file, nil, 0o600))
	swap := func() { // at once: whoever watches the folder makes it anew where there is nothing
		must(t, unix.Renameat2(unix.AT_FDCWD, deletions.Path(r.root), unix.AT_FDCWD, file, unix.RENAME_EXCHANGE))
	}
	swap()
	nettest.Eventually(t, "it to be told of", func() bool { return !r.drain.Quiet() })
	if going, err := r.drain.Going(o.ID); going || err == nil {
		t.Errorf("something new may be in the queue: %v, %v", going, err)
	}
	swap()
	r.enqueue(r.deletion("c", ""))
	if going, err := r.drain.Going(o.ID); !going || err != nil {
		t.Errorf("the deletion waits: %v, %v", going, err)
	}
	must(t, r.drain.All(t.Context()))
	r.wantGone("c")
	r.wantClean()
}

// The same while the agent stops: the agent goes on with the queue until no verb is under way.
// So the pod has no link by which it could talk until the next agent comes.
func TestDeletionIsQueuedWhileTheAgentStops(t *testing.T) {
	r := newRig(t)
	ctx, stop := context.WithCancel(t.Context())
	r.beside(func() {
		stop()
		nettest.Eventually(t, "the socket to be gone", func() bool { _, err := os.Stat(r.root.Socket()); return err != nil })
		r.enqueue(r.deletion("c", ""))
	})
	r.begin()
	r.close()
	o, err := r.options()
	must(t, err)
	ended := make(chan error, 1)
	go func() { ended <- Run(ctx, o, nil) }()
	c := client.New(r.root.Socket())
	defer c.Close()
	nettest.Eventually(t, "it to serve", func() bool { h, err := c.Health(t.Context()); return err == nil && h.Serving })
	if _, err := c.Add(t.Context(), request("c", nettest.Pod(t))); err != nil {
		t.Logf("ADD: %v", err) // the agent may have answered the ADD before it did the deletion
	}
	must(t, <-ended)
	r.wantQueued(0) // the agent has ended
	r.bringUp()
	r.wantGone("c")
	r.wantClean()
}

// A plugin in another time namespace writes a deletion with a time in the future. The deletion
// is about the present attachment, and not about later ones: it neither releases them nor keeps
// them away.
func TestDeletionFromTheFuture(t *testing.T) {
	r := start(t)
	pod := nettest.Pod(t)
	for _, ahead := range []time.Duration{time.Minute, 100 * 365 * 24 * time.Hour} {
		d := r.deletion("a", "")
		d.Started += int64(ahead)
		r.add(request("a", pod))
		id := r.id("a")
		r.enqueue(d)
		if going, err := r.drain.Going(id); !going {
			t.Errorf("nothing says that a is going (%v)", err)
		}
		must(t, r.drain.All(t.Context()))
		r.wantGone("a")
		tomb, ok := r.core.Ledger.Tombstone(attachment.Key{Network: "net", ContainerID: "a", Ifname: "eth0"}.String())
		if left := time.Duration(tomb.Until - r.node.Boottime()); !ok || left > server.MaxDeadline {
			t.Errorf("%v before its time, the deletion's tombstone (%v) stands for %v", ahead, ok, left)
		}
		r.add(request("a", pod))
		r.wantAttached("a")
		r.del("a", true)
		r.wantQueued(0)
	}
	r.wantClean()
}

// Killed between the commit and the removal of the file, the agent does the
// deletion again when it is back; a pod that was attached with the same key
// meanwhile lives.
func TestReplaySparesSuccessor(t *testing.T) {
	r := start(t)
	pod := nettest.Pod(t)
	r.add(request("a", pod))
	link := r.List(key("a"))[0].HostVeth
	for _, named := range []string{link, ""} {
		d := r.deletion("a", named)
		r.enqueue(d)
		must(t, r.undertaken(d)) // and no removal
		r.wantGone("a")
		s, err := deletions.Look(r.root)
		if err != nil || len(s.Pending) != 1 {
			t.Fatalf("%+v, %v", s.Pending, err)
		}
		file := filepath.Join(deletions.Path(r.root), s.Pending[0].Name)
		aside := filepath.Join(t.TempDir(), "deletion")
		rename(t, file, aside) // or the ADD would do the deletion
		r.restart()
		r.add(request("a", pod))
		rename(t, aside, file)
		r.restart()
		r.wantQueued(0)
		r.wantAttached("a")
		r.wantClean()
	}
}

// A deletion that fails stays in the queue, holds up no other deletion, and is done by a later
// drain. The agent refuses an ADD of its key until then.
func TestFailedDrainIsTriedAgain(t *testing.T) {
	r := start(t)
	r.add(request("a", nettest.Pod(t)))
	r.add(request("b", nettest.Pod(t)))
	r.enqueue(r.deletion("a", ""))
	r.core.Ledger.Close() // nothing can be promised
	if err := r.drain.All(t.Context()); err == nil {
		t.Error("a drain without a ledger succeeds")
	}
	r.wantQueued(1)
	_, err := r.tryAdd(request("a", nettest.Pod(t)))
	wantError(t, err, 11, "deletion")
	r.restart()
	r.wantGone("a")
	r.wantAttached("b")
	r.wantQueued(0)
}

// A withdrawn commit has written no tombstone, so the deletions' files stay, even if the agent
// already releases the attachment that a file is about.
func TestWithdrawnDrainKeepsItsFiles(t *testing.T) {
	r, b := startBreakable(t)
	r.add(request("x", nettest.Pod(t)))
	b.set(true, "release", "link", r.id("x"))
	r.del("x", false) // owed from now on
	early := now()    // an ADD of k begins, and is slow on its way
	r.enqueue(r.deletion("x", ""))
	r.enqueue(r.deletion("k", ""))
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if err := r.drain.All(ctx); err == nil {
		t.Error("a drain whose context has ended succeeds")
	}
	r.wantQueued(2)
	must(t, r.drain.All(t.Context()))
	_, err := r.Add(t.Context(), request("k", nettest.Pod(t)), early)
	wantError(t, err, 11, "")
	b.heal()
	r.core.Engine.Retry()
	r.wantGone("x")
}

// An ADD begins before a queued deletion, and is committed between the deletion's look at the
// ledger and the deletion's tombstone. The agent releases the attachment all the same.
func TestQueuedDeletionFindsWhoCameInBetween(t *testing.T) {
	r := newRig(t)
	var between func()
	r.decorate = func(l engine.Ledger, ks hold.Kinds) (engine.Ledger, hold.Kinds) {
		return &busyLedger{l, &between}, ks
	}
	r.begin()
	early := now()
	d := r.deletion("c", "")
	between = func() {
		if _, err := r.Add(t.Context(), request("c", nettest.Pod(t)), early); err != nil {
			t.Error(err)
		}
		r.wantAttached("c")
	}
	must(t, r.undertaken(d))
	if l := r.List(key("c")); len(l) > 0 && l[0].Releasing == nil {
		t.Errorf("left is %+v", l)
	}
	r.wantGone("c")
	r.wantClean()
}

// Until a started agent has made its spare files, its status says that it is making them.
func TestStatusSaysThatSparesAreMade(t *testing.T) {
	r := start(t)
	want := func(filling bool, spares int) {
		t.Helper()
		if st, err := r.Status(t.Context(), ""); err != nil || st.Deletions.Filling != filling || st.Deletions.Spares != spares {
			t.Errorf("%+v, %v", st.Deletions, err)
		}
	}
	want(true, 0)
	r.drain.KeepSpares()
	want(false, deletions.Spares)
}

// Without room for deletions the agent attaches no pod, and STATUS says so; attached pods can
// be deleted.
func TestNoSparesNoAdd(t *testing.T) {
	r := start(t)
	r.add(request("a", nettest.Pod(t)))
	r.drain.KeepSpares()
	must(t, r.drain.Spared())
	dir := deletions.Path(r.root)
	makeFile(t, dir) // no spare can be made
	r.drain.KeepSpares()
	_, err := r.tryAdd(request("b", nettest.Pod(t)))
	if err == nil {
		t.Error("ADD succeeds")
	}
	must(t, os.Remove(dir))
	_, err = r.tryAdd(request("b", nettest.Pod(t)))
	wantError(t, err, 5, "spare")
	_, err = r.Status(t.Context(), "")
	wantError(t, err, 50, "spare")
	if !r.del("a", true) {
		t.Error("a is unknown")
	}
	r.Sweep(t.Context())
	r.add(request("b", nettest.Pod(t)))
}

// makeFile puts an empty file where a folder is, in one step: the watch of a
// queue makes its folder again when that is gone.
func makeFile(t *testing.T, folder string) {
	t.Helper()
	other := folder + "-was"
	must(t, os.WriteFile(other, nil, 0o600))
	must(t, unix.Renameat2(unix.AT_FDCWD, other, unix.AT_FDCWD, folder, unix.RENAME_EXCHANGE))
	must(t, os.RemoveAll(other))
}

// A thousand deletions are done in a few commits, and all links go.
func TestManyDeletions(t *testing.T) {
	if testing.Short() {
		t.Skip("attaches hundreds of pods")
	}
	const pods = 300
	r := start(t, "default=10.88.0.0/22")
	for i := range pods {
		c := "c" + strings.Repeat("x", i%7) + string(hold.NewID())
		r.add(request(c, nettest.Pod(t)))
	}
	for _, e := range r.index.All() {
		r.enqueue(r.deletion(e.Record.ContainerID, e.Interface.Host))
	}
	r.close()
	must(t, r.open())
	before := r.core.Ledger.Stats().Commits
	must(t, r.drain.All(t.Context()))
	promised := r.core.Ledger.Stats()
	for _, e := range r.index.All() {
		if e.Owner.Wanted() {
			t.Errorf("%s is not promised", e.Owner.ID)
		}
	}
	t.Logf("%d commits so far, forgets included", promised.Commits-before)
	must(t, r.Restore(t.Context()))
	nettest.Eventually(t, "all are gone", func() bool { return len(r.index.All()) == 0 })
	r.wantQueued(0)
}

func rename(t *testing.T, from, to string) {
	t.Helper()
	raw, err := os.ReadFile(from)
	if err == nil {
		err = errors.Join(os.WriteFile(to, raw, 0o600), os.Remove(from))
	}
	must(t, err)
}

// The ledger cannot promise the release that a DEL asks for, as on a disk that hangs. The plugin cuts the
// pod off and says "try again", and the agent leaves the pod cut off until the runtime repeats the DEL. Only
// a repeated ADD, which wants the pod again, gives it its network back.
func TestCutOffWithoutAPromise(t *testing.T) {
	for name, then := range map[string]func(r *rig, host string, pod *ns.Netns){
		"DEL again": func(r *rig, host string, _ *ns.Netns) {
			r.del("c", true)
			r.wantGone("c")
		},
		"ADD again": func(r *rig, host string, pod *ns.Netns) {
			r.add(request("c", pod))
			if !isUp(r.t, host) {
				r.t.Error("the link is down behind a repeated ADD")
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			r, broken := newBreakable(t)
			pod := nettest.Pod(t)
			host := r.add(request("c", pod)).Interfaces[0].Name
			broken.before = errors.New("broken")
			if _, _, err := r.Delete(t.Context(), key("c"), false, now()); err == nil {
				t.Fatal("DEL succeeds without a promise")
			}
			nettest.Run(t, nil, "ip link set "+host+" down") // by the plugin
			w := mend.NewWatcher(r.mend)
			at := time.Now()
			w.Hear(rtnl.News{Change: rtnl.LinkDown, Link: rtnl.Link{Name: host}}, at)
			w.Act(t.Context(), at.Add(mend.Down))
			w.Wait()
			r.Sweep(t.Context())
			if isUp(t, host) {
				t.Error("the agent sets the link up again")
			}
			then(r, host, pod)
			r.wantClean()
		})
	}
}

// The ledger cannot promise a release that no plugin asks for. Nobody has cut the pod off, and the agent goes
// on mending the pod's link.
func TestMendedWithoutAPromise(t *testing.T) {
	for name, ask := range map[string]func(*rig, *attachment.Entry) error{
		"GC": func(r *rig, _ *attachment.Entry) error {
			_, err := r.GC(r.t.Context(), api.GCRequest{Network: "net"}, now())
			return err
		},
		"berth release": func(r *rig, e *attachment.Entry) error {
			_, _, err := r.DeleteOne(r.t.Context(), e.Owner.ID, false, now())
			return err
		},
		"of a whole container": func(r *rig, _ *attachment.Entry) error {
			_, _, err := r.Delete(r.t.Context(), api.Filter{Container: "c"}, false, now())
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			r, broken := newBreakable(t)
			host := r.add(request("c", nettest.Pod(t))).Interfaces[0].Name
			broken.before = errors.New("broken")
			if err := ask(r, r.index.All()[0]); err == nil {
				t.Fatal("the deletion succeeds without a promise")
			}
			broken.before = nil
			nettest.Run(t, nil, "ip link set "+host+" down") // by somebody else
			r.Sweep(t.Context())
			nettest.Eventually(t, "the link is up", func() bool { return isUp(t, host) })
		})
	}
}

// newBreakable begins an agent whose ledger can fail.
func newBreakable(t *testing.T) (*rig, *brokenLedger) {
	r := newRig(t)
	var broken *brokenLedger
	r.decorate = func(l engine.Ledger, ks hold.Kinds) (engine.Ledger, hold.Kinds) {
		broken = &brokenLedger{Ledger: l}
		return broken, ks
	}
	r.begin()
	return r, broken
}

// isUp reports whether a link of the node is up.
func isUp(t testing.TB, name string) bool { return nettest.Link(t, name).Attrs().Flags&net.FlagUp != 0 }

package node

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/root"
	"github.com/berth-net/berth/test/programs"
)

// copied returns an agent that does not run yet, on a copy of another agent's root.
func (a *agent) copied() *agent {
	a.t.Helper()
	b := newAgent(a.t, a.node, a.args...)
	if out, err := exec.Command("cp", "-a", filepath.Join(string(a.root), "var"), string(b.root)).CombinedOutput(); err != nil {
		a.t.Fatalf("cp -a: %v: %s", err, out)
	}
	return b
}

// lockFile is where an agent in the test's own node locks its instance.
func (a *agent) lockFile() string {
	a.t.Helper()
	raw, err := os.ReadFile(a.root.Instance())
	must(a.t, err)
	self, err := ns.Self()
	must(a.t, err)
	defer self.Close()
	return root.Lock(strings.TrimSpace(string(raw)), self.Ref().Ino)
}

// Somebody copies the root, as an upgrade that moves it does, and starts a second agent on the
// copy, or has it rebuild or remove. The second agent refuses as long as the first agent lives:
// it would make links again that the first agent has deleted. After a kill of the first agent the
// second agent starts at once, and then the first agent does not start.
func TestCopiedRoot(t *testing.T) {
	const refusal = "another agent of this instance is running"
	a := startAgent(t, pools)
	pods, got := a.podsOf(2)
	b := a.copied()
	files := nettest.Files(t, filepath.Join(string(b.root), "var"))
	b.refused(refusal, "--root "+string(a.root), b.root.State())
	b.args = []string{pools, "--remove"}
	b.refused(refusal)
	nettest.Same(t, files, nettest.Files(t, filepath.Join(string(b.root), "var")), "the refusal changed files")
	b.lose(b.root.Ledger())
	b.args = []string{pools, "--rebuild-ledger"}
	b.refused(refusal)
	b.args = a.args
	b.refused(refusal)

	a.lose(a.lockFile())
	nettest.Eventually(t, "the lock to be there again, which somebody removed", func() bool {
		_, err := os.Stat(a.lockFile())
		return err == nil
	})
	b.refused(refusal)
	a.del("c1", wait)
	nettest.NoPing(t, pods[0], got[1].addrs[0])
	a.wantClean()

	a.kill()
	b = a.copied()
	b.start()
	a.refused(refusal, "--root "+string(b.root))
	b.wantClean()
	b.stop()
	if _, err := os.Stat(a.lockFile()); err == nil {
		t.Error("the lock's file outlives its agent")
	}
	a.start()
	a.wantClean()
}

// Somebody removes the lock while the agent is frozen, and starts another one on a copy of the
// root. The first agent ends when it sees that. It makes nothing again that the other agent
// deletes, and gives no address out that the other agent has given.
func TestLockTakenWhileFrozen(t *testing.T) {
	a := newAgent(t, nil, pools)
	a.start()
	_, got := a.podsOf(2)
	a.freeze()
	b := a.copied()
	a.lose(a.lockFile())
	b.start()
	a.signal(unix.SIGCONT)
	const ending = "somebody removed the lock of its instance and another agent has locked the instance"
	eventuallyWithin(t, "the first one to end", 10*time.Second, func() bool { return strings.Contains(a.log.String(), ending) })
	a.kill()
	b.del("c1", wait)
	if _, err := netlink.LinkByName(got[1].host); err == nil {
		t.Error("what was deleted is there again")
	}
	b.del("c0", wait)
	b.remove()
}

// An agent on a copy in another network namespace has nothing in common with the first
// agent but files: both agents live, if somebody says that the copy is meant (--moved). The copy
// knows of the first agent's pods, which live on.
func TestCopiedRootOnAnotherNode(t *testing.T) {
	a := startAgent(t, pools)
	pods, got := a.podsOf(2)
	b := a.copied()
	b.node = nettest.Node(t)
	b.refused("another network namespace", "--moved")
	b.start("--moved")
	nettest.Eventually(t, "the pods of another node to be given up", func() bool { return len(b.list()) == 0 })
	b.remove()
	pingAll(t, pods[0], got[1])
	a.wantClean()
}

// The disk with the state folder is mounted late: an agent has served from the empty
// folder, and pods are attached that the ledger on the disk knows nothing of. An agent
// does not start on that ledger until these pods are deleted, be it through the queue, or by an agent
// on the folder of before; or until somebody says that nobody will delete them.
func TestStateFolderIsMountedLate(t *testing.T) {
	for how, mend := range map[string]func(a *agent, swap func(), del func()){
		"queued": func(_ *agent, _, del func()) { del() },
		"put back": func(a *agent, swap, del func()) {
			swap()
			a.start()
			del()
			a.wantGone()
			a.remove()
			swap()
		},
		"left alone": func(a *agent, _, _ func()) { a.lose(a.marker()) },
	} {
		t.Run(how, func(t *testing.T) {
			a := newAgent(t, nettest.Node(t), pools)
			a.start()
			a.remove()
			state, beside := a.root.State(), a.root.State()+".beside"
			swap := func() {
				t.Helper()
				must(t, errors.Join(os.MkdirAll(beside, 0o700), unix.Renameat2(unix.AT_FDCWD, state, unix.AT_FDCWD, beside, unix.RENAME_EXCHANGE)))
			}
			a.lose(a.root.Run()) // a reboot, and
			swap()               // no disk yet
			before := nettest.Snapshot(t, a.node).Only("link")
			a.start()
			results := map[string]string{}
			for _, c := range []string{"c0", "c1"} {
				out, err := a.exec("ADD", c, nettest.Pod(t).Ref().Path)
				must(t, err)
				results[c] = string(out)
			}
			for _, at := range a.list() {
				programs.Settled(a.t, a.node, at.HostVeth)
			}
			a.stop()
			swap()
			for _, arg := range []string{"--moved", "--remove", "--rebuild-ledger"} {
				a.args = []string{pools, arg}
				a.refused("not the one from which an agent served here last", "links on the node (2, such as b", a.root.Instance(), a.marker())
			}
			a.args = []string{pools}
			mend(a, swap, func() {
				for c, result := range results {
					a.del(c, `"prevResult":`+result)
				}
			})
			a.start()
			a.wantGone()
			a.remove()
			if diff := before.Diff(nettest.Snapshot(t, a.node).Only("link")); (diff == "") == (how == "left alone") {
				t.Errorf("links that are left:\n%s", diff)
			}
		})
	}
}

// marker is the file that says which agent has served here since the boot.
func (a *agent) marker() string { return filepath.Join(a.root.Run(), "epoch") }

// A runtime sends a pod's DEL to another agent of the node than its ADD, with the ADD's result,
// while that agent serves, and while it is away. The link does not belong to that agent.
func TestDelOfAnotherAgentsPod(t *testing.T) {
	owner := startAgent(t, "--pool=default=10.89.0.0/24")
	other := newAgent(t, nil, pools)
	other.start()
	pod, from := nettest.Pod(t), nettest.Pod(t)
	raw, err := owner.exec("ADD", "c", pod.Ref().Path)
	must(t, err)
	is := owner.add("c", pod)
	owner.add("from", from)
	was := nettest.Link(t, is.host).Attrs().Index
	del := func(how string) {
		t.Helper()
		if err := other.tryDel("c", pod.Ref().Path, `"prevResult":`+string(raw)); err != nil {
			t.Errorf("%s: %v", how, err)
		}
	}
	untouched := func(how string) {
		t.Helper()
		if now := nettest.Link(t, is.host).Attrs().Index; now != was {
			t.Errorf("%s: the link was deleted, and made again: it was %d, and is %d", how, was, now)
		}
		nettest.Ping(t, from, is.addrs[0])
	}
	del("served")
	untouched("served")
	other.kill()
	del("queued")
	other.start() // the agent does the queued deletion before it serves
	untouched("queued")
	other.wantClean()
	owner.wantClean()
	other.remove()
}

// Somebody changes the root in the configuration, to a folder where no agent ever ran, while
// pods are attached. A DEL with that root says so as long as the pod's agent runs, and touches
// nothing: nobody would ever read a deletion that is queued there, and the pod's agent would
// mend the link.
func TestDelAtARootOfNobody(t *testing.T) {
	for name, prev := range map[string]bool{"with the result of ADD": true, "without": false} {
		t.Run(name, func(t *testing.T) {
			a := startAgent(t, pools)
			pod, from := nettest.Pod(t), nettest.Pod(t)
			a.add("from", from)
			raw, err := a.exec("ADD", "c", pod.Ref().Path)
			must(t, err)
			is := a.add("c", pod)
			nobodys := newAgent(t, nil)
			if !prev { // left by an earlier plugin
				raw = []byte("null")
				must(t, os.MkdirAll(nobodys.root.State(), 0o700))
			}
			files := nettest.Files(t, string(nobodys.root))
			was := nettest.Link(t, is.host).Attrs().Index
			for _, how := range []string{"served", "hung"} {
				err := nobodys.tryDel("c", pod.Ref().Path, `"prevResult":`+string(raw))
				programs.WantError(t, err, 7, "no agent has ever run with this root, and the pod's link "+is.host+" belongs to a running agent: process ")
				if err != nil && !strings.Contains(err.Error(), ", --root "+string(a.root)) {
					t.Errorf("%s: it does not say which root is meant: %v", how, err)
				}
				if how == "served" {
					a.freeze()
				}
			}
			a.signal(unix.SIGCONT)
			nettest.Same(t, files, nettest.Files(t, string(nobodys.root)), "it changes the folder of nobody")
			if now := nettest.Link(t, is.host).Attrs().Index; now != was {
				t.Errorf("the link was deleted, and made again: it was %d, and is %d", was, now)
			}
			wantUp(t, is)
			nettest.Ping(t, from, is.addrs[0])
		})
	}
}

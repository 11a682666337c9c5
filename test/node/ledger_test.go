package node

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/deletions"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/test/programs"
)

// tmpfs mounts a file system of its own on a folder.
func tmpfs(t *testing.T, at, options string) {
	t.Helper()
	must(t, os.MkdirAll(at, 0o700))
	nettest.Mount(t, at, options)
}

// A damaged ledger keeps berthd from starting. The file and the pods stay as they are, and an
// intact copy is enough for a start.
func TestDamagedLedger(t *testing.T) {
	a := startAgent(t, pools)
	pods, got := a.podsOf(2)
	a.kill()
	path := a.root.Ledger()
	good, err := os.ReadFile(path)
	must(t, err)
	// Pages that are no longer in use may have the record, too.
	first := bytes.Index(good, []byte(`"containerID":"c1"`))
	if first < 0 {
		t.Fatal("the ledger does not have the container's id in plain text")
	}
	flipped := bytes.ReplaceAll(good, []byte(`"containerID":"c1"`), []byte(`"containerID":"c0"`))
	for name, bad := range map[string][]byte{
		"a flipped bit":    flipped,
		"cut in a record":  good[:first&^4095],
		"cut to a page":    good[:4096],
		"all zeros":        make([]byte, len(good)),
		"another's file":   []byte(strings.Repeat("this is no ledger\n", 4096)),
		"one byte":         good[:1],
		"torn in the head": append(make([]byte, 8192), good[8192:]...),
	} {
		t.Run(name, func(t *testing.T) {
			must(t, os.WriteFile(path, bad, 0o600))
			a.refused("ledger "+path+" is damaged", "the file stays as it is")
			if now, err := os.ReadFile(path); err != nil || !bytes.Equal(now, bad) {
				t.Errorf("the damaged file was changed (%v)", err)
			}
			pingAll(t, pods[0], got[1])
		})
	}
	must(t, os.WriteFile(path, good, 0o600))
	a.start()
	a.wantClean()
	if n := len(a.list()); n != 2 {
		t.Errorf("%d attachments, want 2", n)
	}
}

func TestDamagedInstance(t *testing.T) {
	a := startAgent(t, pools)
	a.podsOf(1)
	a.kill()
	good, err := os.ReadFile(a.root.Instance())
	must(t, err)
	for _, bad := range []string{"short", "../../etc", "ABCDEFGHIJ\n"} {
		must(t, os.WriteFile(a.root.Instance(), []byte(bad), 0o600))
		a.refused(a.root.Instance())
	}
	must(t, os.WriteFile(a.root.Instance(), good, 0o600))
	a.start()
	a.wantClean()
}

// On a read-only file system no promise can be written: berthd does not start,
// and `berth ledger` still shows what pods hold.
func TestReadOnlyLedger(t *testing.T) {
	a := newAgent(t, nettest.Node(t), pools)
	tmpfs(t, a.root.State(), "size=16m")
	a.start()
	pods, got := a.podsOf(2)
	a.stop()
	remount := func(flags uintptr) {
		must(t, unix.Mount("", a.root.State(), "", unix.MS_REMOUNT|flags, "size=16m"))
	}
	remount(unix.MS_RDONLY)
	a.refused("read-only file system")
	pingAll(t, pods[0], got[1])
	out, err := exec.Command(filepath.Join(a.bin, "berth"), "--root", string(a.root), "ledger").CombinedOutput()
	if err != nil || !strings.Contains(string(out), got[0].addrs[0].String()) {
		t.Errorf("berth ledger: %v\n%s", err, out)
	}
	remount(0)
	a.start()
	a.releaseAll()
}

// A full disk stops ADD and not DEL, and ADD goes on when there is room again.
func TestFullDisk(t *testing.T) {
	a := newAgent(t, nettest.Node(t), pools)
	tmpfs(t, a.root.State(), "size=16m")
	a.start()
	old := nettest.Pod(t)
	a.add("old", old)
	empty := a.fill()

	// Records of a size that uses the ledger's own room up soon: the ledger has each < as \u003c.
	words := strings.Repeat(fmt.Sprintf("%q,", strings.Repeat("<", 250)), 7)
	bulk := fmt.Sprintf(`"dns":{"search":[%[1]s"s"],"options":[%[1]s"s"]}`, words)
	var full error
	n := 0
	for ; full == nil && n < 200; n++ {
		_, full = a.tryAdd(fmt.Sprint("bulk", n), nettest.Pod(t), bulk)
	}
	programs.WantError(t, full, 5, "disk full")
	for full = nil; full == nil && n < 200; n++ { // smaller records still find room
		_, full = a.tryAdd(fmt.Sprint("bulk", n), nettest.Pod(t))
	}
	programs.WantError(t, full, 5, "disk full")
	last := nettest.Pod(t)
	nettest.Eventually(t, "the kernel to give each link a multicast route of its own", func() bool {
		return strings.Count(nettest.Snapshot(t, a.node).Only("route").String(), "multicast ff00::/8") == len(a.list())
	})
	before := nettest.Snapshot(t, a.node).And(nettest.Snapshot(t, last)).Without("conntrack")
	_, err := a.tryAdd("last", last, bulk)
	programs.WantError(t, err, 5, "disk full")
	nettest.Same(t, before, nettest.Snapshot(t, a.node).And(nettest.Snapshot(t, last)).Without("conntrack"), "the refused ADD changed")
	_, err = a.exec("STATUS", "", "")
	programs.WantError(t, err, 50, "disk full")

	a.kill() // another process can delete what is in the file, too
	a.start()
	a.del("old", wait)
	for i := range n { // two of these were never attached
		a.del(fmt.Sprint("bulk", i))
	}
	a.del("last")
	a.wantGone()
	empty()
	if _, err := a.exec("STATUS", "", ""); err != nil {
		t.Errorf("STATUS with room again: %v", err)
	}
	a.add("last", last, bulk)
	a.releaseAll()
}

// More pods are attached than an agent has spare files when it starts. The disk becomes full, and the
// agent dies: the DEL of each pod succeeds.
func TestManyPodsOnFullDisk(t *testing.T) {
	if testing.Short() {
		t.Skip("attaches hundreds of pods")
	}
	a := newAgent(t, nil, "--pool=default=10.88.0.0/22")
	tmpfs(t, a.root.State(), "size=16m")
	a.start()
	const n = deletions.Spares + 30
	pods, _ := a.podsOf(n)
	nettest.Eventually(t, "room for a deletion of each pod", func() bool {
		s, err := deletions.Look(a.root)
		return err == nil && s.Spares > n
	})
	empty := a.fill()
	a.kill()
	for i, pod := range pods {
		if err := a.tryDel(fmt.Sprint("c", i), pod.Ref().Path); err != nil {
			t.Fatalf("DEL of pod %d of %d: %v", i, n, err)
		}
	}
	empty()
	a.start()
	a.wantGone()
	a.remove()
}

// While the disk is full and no agent there, a runtime repeats the DEL of one pod, more often
// than there is room for deletions: the deletion of another pod still finds room.
func TestRepeatedDelOnFullDisk(t *testing.T) {
	a := newAgent(t, nil, pools)
	tmpfs(t, a.root.State(), "size=16m")
	a.start()
	pods, got := a.podsOf(2)
	nettest.Eventually(t, "room for deletions", func() bool {
		s, err := deletions.Look(a.root)
		return err == nil && s.Spares == deletions.Spares
	})
	empty := a.fill()
	a.kill()
	for i := range deletions.Spares + 20 {
		if err := a.tryDel("c0", pods[0].Ref().Path); err != nil {
			t.Fatalf("DEL of c0 for the %d-th time: %v", i, err)
		}
	}
	a.del("c1", `"prevResult":{"cniVersion":"1.1.0","interfaces":[{"name":"`+got[1].host+`"}]}`)
	if s, err := deletions.Look(a.root); err != nil || s.Spares < deletions.Spares/2 {
		t.Errorf("room for %d deletions, %v", s.Spares, err)
	}
	empty()
	a.start()
	a.wantGone()
	a.remove()
}

// fill takes all that is left of the state's disk, until empty is called.
func (a *agent) fill() (empty func()) {
	a.t.Helper()
	filler := filepath.Join(a.root.State(), "filler")
	f, err := os.Create(filler)
	must(a.t, err)
	_, err = io.Copy(f, zeros{})
	if f.Close(); !errors.Is(err, unix.ENOSPC) {
		a.t.Fatalf("filling the disk: %v", err)
	}
	return func() {
		a.t.Helper()
		must(a.t, os.Remove(filler))
	}
}

// zeros is a file without end.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

// A root has one agent: the second refuses to start, and the first serves on.
func TestLedgerInUse(t *testing.T) {
	a := startAgent(t, pools)
	pods, got := a.podsOf(2)
	files := nettest.Files(t, string(a.root))
	a.refused("ledger is in use", fmt.Sprint(a.cmd.Process.Pid))
	nettest.Same(t, files, nettest.Files(t, string(a.root)), "the refusal changed files")
	pingAll(t, pods[0], got[1])
	a.add("c2", nettest.Pod(t))
	a.wantClean()
}

// A pool leaves the configuration, the ledger is lost, and the pool comes back: the pool's
// addresses rest all the same, for the pool's cooldown.
func TestPoolThatComesBackRests(t *testing.T) {
	const without = "pools:\n- {name: b, cidrs: [10.89.0.0/24], cooldown: 1ms}\n"
	const with = without + "- {name: a, cidrs: [10.88.0.7/32]}\n"
	a := newAgent(t, nil)
	a.configure(with)
	a.startWatched()
	a.add("c", nettest.Pod(t), `"pool":"a"`)
	a.del("c", wait)
	a.kill()
	a.configure(without)
	a.lose(a.root.Ledger())
	a.start()
	a.configure(with)
	a.reload(inForce)
	if got, err := a.tryAdd("d", nettest.Pod(t), `"pool":"a"`); err == nil || !strings.Contains(err.Error(), "the ledger was lost") {
		t.Errorf("given again at once: %v, %v", got.addrs, err)
	}
}

// The ledger was lost once. Somebody raises the cooldown later: the new cooldown applies only
// to pods that are deleted from then on, and pods are attached as before, also after a restart.
func TestRaisedCooldownAfterLoss(t *testing.T) {
	conf := func(cooldown string) string {
		return "cooldown: " + cooldown + "\npools:\n- {name: default, cidrs: [10.88.0.0/24]}\n"
	}
	a := newAgent(t, nil)
	a.configure(conf("1ms"))
	a.startWatched()
	a.kill()
	a.lose(a.root.Ledger())
	a.start()
	nettest.Eventually(t, "the quarantine is over", func() bool {
		_, err := a.tryAdd("before", nettest.Pod(t))
		return err == nil
	})
	a.configure(conf("1h"))
	a.reload(inForce)
	a.add("raised", nettest.Pod(t))
	a.kill()
	a.start()
	a.add("restarted", nettest.Pod(t))
}

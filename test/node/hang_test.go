package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/cni"
	"github.com/berth-net/berth/internal/deletions"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/test/programs"
)

// bind mounts a network namespace on a file.
func bind(t *testing.T, pod *ns.Netns, path string) {
	t.Helper()
	must(t, os.WriteFile(path, nil, 0o600))
	must(t, unix.Mount(pod.Ref().Path, path, "", unix.MS_BIND, ""))
}

func unbind(t *testing.T, path string, flags int) {
	t.Helper()
	must(t, unix.Unmount(path, flags))
}

// While the folder of queued deletions hangs, the agent mends links, sweeps, and tells people.
// It attaches no pods, since a deletion might wait.
func TestQueueHangs(t *testing.T) {
	a := startAgent(t, pools)
	pods, got := a.podsOf(2)
	folder := deletions.Path(a.root)
	heal := nettest.Hang(t, folder)
	nettest.Run(t, nil, "ip link set "+got[0].host+" down")
	nettest.Run(t, nil, "ip link del "+got[1].host)
	eventuallyWithin(t, "the links to be mended", 20*time.Second, func() bool {
		return nettest.Echo(pods[0], got[1].addrs[0], 300*time.Millisecond) == nil
	})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if st, err := a.api.Status(ctx, ""); err == nil || st.Deletions.Error == "" {
		t.Errorf("status: %+v, %v", st.Deletions, err)
	}
	began := time.Now()
	if _, err := a.exec("ADD", "new", nettest.Pod(t).Ref().Path); err == nil || time.Since(began) > 5*time.Second {
		t.Errorf("ADD: %v after %s", err, time.Since(began))
	}
	if _, err := a.api.Delete(ctx, api.Filter{Network: "net", Container: "c0", Ifname: "eth0"}, false); err != nil {
		t.Errorf("DEL: %v", err)
	}
	nettest.NoPing(t, pods[1], got[0].addrs[0])
	heal()
	unbind(t, folder, unix.MNT_DETACH)
	must(t, unix.Mount("hangs", folder, "tmpfs", 0, "mode=700")) // for Hang to unmount
	t.Cleanup(a.kill)                                            // before that, because the agent has the folder open
	eventuallyWithin(t, "deletions to be looked for again", 20*time.Second, func() bool {
		return a.tryDel("c1", pods[1].Ref().Path) == nil && len(a.list()) == 0
	})
}

// The queue's folder begins to hang as many pods are attached: their ADDs hear "try again",
// STATUS says that no pod can be attached, and other requests have their turn.
func TestQueueHangsInBurst(t *testing.T) {
	a := newAgent(t, nil, pools)
	t.Cleanup(func() { a.releaseAll(); a.remove() })
	a.configure("concurrency: 4\nsweepInterval: 1h\n")
	a.start()
	a.podsOf(1)
	pods := make([]string, 6) // twice as many as the agent attaches at once
	for i := range pods {
		pods[i] = nettest.Pod(t).Ref().Path
	}
	heal := nettest.Hang(t, deletions.Path(a.root))
	t.Cleanup(a.kill) // before the folder is unmounted
	var burst sync.WaitGroup
	for i, pod := range pods {
		burst.Go(func() {
			if _, err := a.exec("ADD", fmt.Sprint("new", i), pod); err == nil {
				t.Error("a pod is attached though its deletion might wait")
			}
		})
	}
	all := make(chan struct{})
	go func() {
		burst.Wait()
		close(all)
	}()
	select {
	case <-all:
	case <-time.After(20 * time.Second):
		heal() // fails whoever waits
		t.Fatal("ADDs wait for the folder")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if _, err := a.api.List(ctx, api.Filter{}); err != nil {
		t.Errorf("a list: %v", err)
	}
	if _, err := a.api.GC(ctx, api.GCRequest{Network: "other"}); err != nil {
		t.Errorf("GC: %v", err)
	}
	_, err := a.exec("STATUS", "", "")
	programs.WantError(t, err, cni.CodeNotAvailable, "the file system does not answer")
	a.del("c0")
}

// A network namespace's path may lead through /proc or /run/netns to a file system that
// hangs: nobody else's DEL waits for that.
func TestNetnsHangsBehindProc(t *testing.T) {
	for _, how := range []string{"/proc", "link"} {
		t.Run(how, func(t *testing.T) {
			a := startAgent(t, pools)
			dir := t.TempDir()
			path := filepath.Join(dir, "netns")
			gone, other := nettest.Pod(t), nettest.Pod(t)
			bind(t, gone, path)
			given := fmt.Sprintf("/proc/%d/root%s", os.Getpid(), path)
			if how == "link" {
				given = "/run/netns/link-" + filepath.Base(filepath.Dir(dir))
				must(t, os.Symlink(path, given))
				t.Cleanup(func() { os.Remove(given) })
			}
			if _, err := a.exec("ADD", "gone", given); err != nil {
				t.Fatal(err)
			}
			a.add("other", other)
			unbind(t, path, 0)
			nettest.Hang(t, dir)
			nettest.Run(t, gone, "ip link del eth0")
			first := make(chan error, 1)
			go func() { first <- a.tryDel("gone", "") }()
			time.Sleep(100 * time.Millisecond)
			began := time.Now()
			_, err := a.api.Delete(t.Context(), api.Filter{Network: "net", Container: "other", Ifname: "eth0"}, true)
			if err != nil || time.Since(began) > 5*time.Second {
				t.Errorf("DEL of another pod: %v after %s", err, time.Since(began))
			}
			if err := <-first; err != nil {
				t.Errorf("DEL: %v", err)
			}
		})
	}
}

// A path that hung is a path like any other once another file system is mounted there,
// though the call that hung never ends.
func TestHangingPathIsReused(t *testing.T) {
	a := startAgent(t, pools)
	dir := t.TempDir()
	path := filepath.Join(dir, "netns")
	gone, heir := nettest.Pod(t), nettest.Pod(t)
	bind(t, gone, path)
	if _, err := a.exec("ADD", "gone", path); err != nil {
		t.Fatal(err)
	}
	unbind(t, path, 0)
	nettest.Hang(t, dir)
	nettest.Run(t, gone, "ip link del eth0")
	a.del("gone", wait)
	unbind(t, dir, unix.MNT_DETACH)
	bind(t, heir, path)
	eventuallyWithin(t, "the path to be used again", 20*time.Second, func() bool {
		_, err := a.exec("ADD", "heir", path)
		return err == nil
	})
	a.del("heir", wait)
	unbind(t, path, 0)
	must(t, unix.Mount("hangs", dir, "tmpfs", 0, "")) // for Hang to unmount
}

// A file system that hangs in a folder where a rebuild looks for pods, or over the folder
// itself, keeps no ledger from being made anew.
func TestRebuildBesideHangingPath(t *testing.T) {
	nettest.Hang(t, t.TempDir())() // skips here if it has to: no agent could clean up once its ledger is lost
	process := func(t *testing.T) string {
		is := sleeper(t, nettest.Pod(t))
		return filepath.Dir(filepath.Dir(is))
	}
	for name, folder := range map[string]func(t *testing.T) string{
		"below /run/netns":  func(t *testing.T) string { return folderFor(t, "/run/netns/hangs") },
		"/run/netns":        func(t *testing.T) string { return "/run/netns" },
		"/run/docker/netns": func(t *testing.T) string { return folderFor(t, "/run/docker/netns") },
		"/proc/PID":         process,
	} {
		t.Run(name, func(t *testing.T) {
			at := folder(t)
			a := startAgent(t, "--pool=default=10.88.0.0/24")
			pods, got := a.podsOf(2)
			paths := []string{sleeper(t, pods[0]), sleeper(t, pods[1])} // by which a rebuild finds the pods, whatever hangs
			a.kill()
			a.lose(a.root.Ledger())
			heal := nettest.Hang(t, at)
			done := make(chan error, 1)
			rebuild := a.berthd("--rebuild-ledger")
			go func() { done <- rebuild.Run() }()
			select {
			case err := <-done:
				must(t, err)
			case <-time.After(20 * time.Second):
				_ = rebuild.Process.Kill()
				heal()
				t.Fatal(errors.Join(errors.New("the rebuild hangs"), <-done))
			}
			a.start()
			if l := a.list(); len(l) != 2 {
				t.Errorf("known are %+v, not the pods at %s", l, paths)
			}
			pingAll(t, pods[0], got[1])
		})
	}
}

// folderFor makes a folder for a test.
func folderFor(t *testing.T, path string) string {
	t.Helper()
	must(t, os.MkdirAll(path, 0o755))
	t.Cleanup(func() { os.Remove(path) })
	return path
}

// sleeper starts a process in a pod, and returns the path of the pod's network namespace
// by that process.
func sleeper(t *testing.T, pod *ns.Netns) string {
	t.Helper()
	p := nettest.Command(pod, "sleep", "1000")
	must(t, p.Start())
	t.Cleanup(func() {
		_ = p.Process.Kill()
		_ = p.Wait()
	})
	path := fmt.Sprintf("/proc/%d/ns/net", p.Process.Pid)
	nettest.Eventually(t, "the process to be in the pod", func() bool {
		n, err := ns.Open(path)
		if err != nil {
			return false
		}
		defer n.Close()
		return n.Ref().Same(pod.Ref())
	})
	return path
}

// A file system that hangs is mounted over /run/netns itself, and the pods with paths there
// lose their links. The agent mends a pod whose path is elsewhere, deletes the pods with paths
// there, and answers requests.
func TestNetnsFolderHangs(t *testing.T) {
	a := newAgent(t, nil, "--pool=default=10.88.0.0/24")
	a.configure("sweepInterval: 2s\n")
	a.startWatched()
	_, got := a.podsOf(10)
	elsewhere := nettest.Pod(t)
	path := sleeper(t, elsewhere)
	if _, err := a.exec("ADD", "elsewhere", path); err != nil {
		t.Fatal(err)
	}
	all, err := a.api.List(t.Context(), api.Filter{Container: "elsewhere"})
	if err != nil || len(all) != 1 {
		t.Fatalf("%+v, %v", all, err)
	}
	nettest.Hang(t, filepath.Dir(elsewhere.Ref().Path))
	for _, g := range got[:9] { // more pods than the agent mends beside each other
		nettest.Run(t, nil, "ip link del "+g.host)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if _, err := a.api.Audit(ctx); err != nil {
		t.Errorf("audit: %v", err)
	}
	nettest.Run(t, nil, "ip link del "+all[0].HostVeth)
	eventuallyWithin(t, "the pod elsewhere to be mended", 10*time.Second, func() bool {
		return nettest.Echo(elsewhere, got[9].addrs[0], 100*time.Millisecond) == nil
	})
	for _, container := range []string{"c0", "c9", "elsewhere"} {
		if err := a.tryDel(container, ""); err != nil {
			t.Errorf("DEL of %s: %v", container, err)
		}
	}
}

// eventuallyWithin is nettest.Eventually, for what waits for limits of seconds.
func eventuallyWithin(t *testing.T, what string, limit time.Duration, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(limit); !cond(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited %s in vain for %s", limit, what)
		}
	}
}

// Many pods' paths are in one folder that hangs, and these pods lose their links. The agent
// starts, mends another pod and deletes it as fast as if only one path hung.
func TestManyHangingPaths(t *testing.T) {
	a := startAgent(t, pools)
	dir := t.TempDir()
	other, from := nettest.Pod(t), nettest.Pod(t)
	is := a.add("other", other)
	a.add("from", from)
	var pods []*ns.Netns
	var paths []string
	for i := range 20 {
		pod, path := nettest.Pod(t), filepath.Join(dir, fmt.Sprint(i))
		bind(t, pod, path)
		if _, err := a.exec("ADD", fmt.Sprint("hangs", i), path); err != nil {
			t.Fatal(err)
		}
		pods, paths = append(pods, pod), append(paths, path)
	}
	for _, path := range paths {
		unbind(t, path, 0)
	}
	nettest.Hang(t, dir)
	for _, pod := range pods {
		nettest.Run(t, pod, "ip link del eth0")
	}
	// The agent gives one pod's path a second, and all paths of the folder little more.
	mended := func(when string) {
		t.Helper()
		nettest.Run(t, nil, "ip route del "+is.addrs[0].String())
		eventuallyWithin(t, "the other pod to be mended "+when, 8*time.Second, func() bool {
			return nettest.Echo(from, is.addrs[0], 100*time.Millisecond) == nil
		})
	}
	mended("beside them")
	var deleted sync.WaitGroup
	for i := range pods {
		deleted.Go(func() { _ = a.tryDel(fmt.Sprint("hangs", i), paths[i]) })
	}
	mended("beside their deletion")
	deleted.Wait()
	a.kill()
	a.start()
	mended("after a start")
	if err := a.tryDel("other", other.Ref().Path, wait); err != nil {
		t.Error(err)
	}
}

// A pod's namespace is mounted elsewhere by now, and a repeated ADD says where: the pod is
// mended by that path.
func TestNetnsPathMoves(t *testing.T) {
	a := startAgent(t, pools)
	dir := t.TempDir()
	pod := nettest.Pod(t)
	one, two := filepath.Join(dir, "one"), filepath.Join(dir, "two")
	bind(t, pod, one)
	if _, err := a.exec("ADD", "c", one); err != nil {
		t.Fatal(err)
	}
	bind(t, pod, two)
	unbind(t, one, 0)
	defer unbind(t, two, 0)
	raw, err := a.exec("ADD", "c", two)
	if err != nil || !strings.Contains(string(raw), two) || strings.Contains(string(raw), one) {
		t.Errorf("%v; the result does not name %s: %s", err, two, raw)
	}
	nettest.Run(t, pod, "ip link del eth0")
	nettest.Eventually(t, "the pod to be mended", func() bool {
		_, err := nettest.Command(pod, nettest.Program(t, "ip"), "route", "get", "10.88.0.99").CombinedOutput()
		return err == nil
	})
	if l := a.list(); len(l) != 1 || l[0].Netns != two {
		t.Errorf("attached are %+v", l)
	}
	if err := a.tryDel("c", two, wait); err != nil {
		t.Error(err)
	}
}

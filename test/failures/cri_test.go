package failures

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/test/programs"
)

// runtimes, general: containerd tries a failed DEL for ever and keeps the pod, CRI-O forgets
// the pod; neither runtime keeps a list, beyond its own end, of what is still to be given back. Here
// the list is on disk, Berth shows the list also while no agent runs, and the agent works the list
// off though nobody asks again.
func TestOwedIsKept(t *testing.T) {
	n := newNode(t, roomy)
	left := 0
	for try := 0; left == 0 && try < 10; try++ { // all releases may be done before the agent is killed
		n.killAtCut(n.burst(40))
		out, err := n.Berth(t.Context(), "ledger", "-o", "json")
		must(t, err)
		left = strings.Count(out, `"releasing"`)
		if held := strings.Count(out, `"kind": "link"`); held != left {
			t.Errorf("%d links are in the ledger, %d attachments are releasing:\n%s", held, left, out)
		}
		n.Again()
		n.wantNothing()
	}
	if left == 0 {
		t.Error("nothing was left to be shown")
	}
}

// killAtCut has GC delete all pods, and kills the agent when the last pod is cut off: most
// links are still there then.
func (n *node) killAtCut(pods []attached) {
	n.t.Helper()
	updates, done := make(chan netlink.LinkUpdate, 4096), make(chan struct{})
	must(n.t, netlink.LinkSubscribe(updates, done))
	defer close(done)
	groups := map[string]uint32{} // of the pods that are not cut off
	for _, p := range pods {
		link := nettest.Link(n.t, p.host)
		groups[p.host] = link.Attrs().Group
	}
	gc := n.begin(call{verb: "GC", keys: []string{validKey()}})
	gc.feed()
	for u := range updates {
		if at := u.Attrs(); groups[at.Name] != at.Group || u.Header.Type == unix.RTM_DELLINK {
			delete(groups, at.Name)
		}
		if len(groups) == 0 {
			break
		}
	}
	n.Crash()
	_, _ = gc.end() // the GC may have got no answer
}

// containerd #12923, #5768: the runtime died between ADD and writing down its result, and DEL
// was never called. containerd #5438, #5569: clean-up ran with a context that had ended, so DEL
// was never executed. Here GC takes attachments that nobody claims, and the agent releases a
// pod whose network namespace has ended though nobody asks.
func TestDelNeverComes(t *testing.T) {
	n := newNode(t, brisk)
	here, ended := nettest.Pod(t), nettest.Pod(t)
	n.add("collected", here)
	n.add("ended", ended)
	kept := n.add("kept", nettest.Pod(t))
	gone(t, ended)
	nettest.Eventually(t, "the pod that has ended to be released", func() bool { return len(programs.List(n.t, n.API)) == 2 })
	n.collect("kept")
	nettest.Eventually(t, "the pod that nobody claims to be released", func() bool { return len(programs.List(n.t, n.API)) == 1 })
	nettest.Ping(t, nil, kept.Addr)
	n.Audit(n.t)
}

// containerd #12130; libcni, general: the DEL of a chain ends at the first plugin that fails,
// and the plugins before it are never called. Here the pod's end is enough.
func TestAnotherPluginFailsAtDel(t *testing.T) {
	n := newNode(t, brisk)
	broken := filepath.Join(t.TempDir(), "broken")
	script := "#!/bin/sh\ncat >/dev/null\ntest \"$CNI_COMMAND\" != DEL && echo '{\"cniVersion\":\"1.0.0\"}'\n"
	must(t, os.WriteFile(broken, []byte(script), 0o755))
	list, err := libcni.NetworkConfFromBytes(fmt.Appendf(nil,
		`{"cniVersion":"1.0.0","name":"net","plugins":[{"type":"berth-cni","root":%q},{"type":"broken"}]}`, n.Root))
	must(t, err)
	runtime := libcni.NewCNIConfigWithCacheDir([]string{n.bin, filepath.Dir(broken)}, t.TempDir(), nil)
	pod := nettest.Pod(t)
	rt := &libcni.RuntimeConf{ContainerID: "c", NetNS: pod.Ref().Path, IfName: "eth0"}
	if _, err := runtime.AddNetworkList(t.Context(), list, rt); err != nil {
		t.Fatal(err)
	}
	if err := runtime.DelNetworkList(t.Context(), list, rt); err == nil || !n.has("c") {
		t.Fatalf("DEL of the chain: %v, attached %t; want an error, and Berth not called", err, n.has("c"))
	}
	gone(t, pod)
	n.wantNothing()
}

// cni #1055: after a reboot libcni's cache file was empty, and the pod was
// stuck. Here DEL needs nothing of what the runtime has remembered.
func TestEmptyCacheOfLibcni(t *testing.T) {
	n := newNode(t, plain)
	list, err := libcni.NetworkConfFromBytes(fmt.Appendf(nil,
		`{"cniVersion":"1.0.0","name":"net","plugins":[{"type":"berth-cni","root":%q}]}`, n.Root))
	must(t, err)
	cache := t.TempDir()
	runtime := libcni.NewCNIConfigWithCacheDir([]string{n.bin}, cache, nil)
	for _, left := range []int64{0, 1, 100} { // bytes
		rt := &libcni.RuntimeConf{ContainerID: "c", NetNS: nettest.Pod(t).Ref().Path, IfName: "eth0"}
		if _, err := runtime.AddNetworkList(t.Context(), list, rt); err != nil {
			t.Fatal(err)
		}
		must(t, os.Truncate(filepath.Join(cache, "results", "net-c-eth0"), left))
		if err := runtime.DelNetworkList(t.Context(), list, rt); err != nil {
			t.Errorf("DEL with %d bytes of cache: %v", left, err)
		}
	}
	n.wantNothing()
}

// containerd #8774, #11209: a sandbox could not be removed, because the CNI
// configuration or the agent was gone. Here the operator needs neither the
// configuration nor the runtime.
func TestReleaseWithoutConfiguration(t *testing.T) {
	n := newNode(t, plain)
	n.add("c", nettest.Pod(t))
	kept := n.add("kept", nettest.Pod(t))
	out, err := n.Berth(t.Context(), "release", "--wait", "--container", "c")
	if err != nil || !strings.Contains(out, "released") {
		t.Errorf("berth release: %v\n%s", err, out)
	}
	if l := programs.List(n.t, n.API); len(l) != 1 || l[0].ContainerID != "kept" {
		t.Errorf("left are %v, want kept alone", l)
	}
	nettest.Ping(t, nil, kept.Addr)
	n.Audit(n.t)
}

// containerd #3667, #6143: a network namespace could not be unlinked ("device
// or resource busy"), or lived on, because others had it open or mounted. Here
// the agent keeps no pod's namespace.
func TestNetnsIsNotKept(t *testing.T) {
	n := newNode(t, plain)
	pod := nettest.Pod(t)
	n.add("c", pod)
	n.wantNotOpen(pod)
	n.restart()
	n.Audit(n.t) // looks at the pod, too
	n.wantNotOpen(pod)
	path := pod.Ref().Path
	pod.Close()
	if err := unix.Unmount(path, 0); err != nil { // not lazily
		t.Errorf("umount %s: %v", path, err)
	}
	nettest.Eventually(t, "the kernel to end the namespace", func() bool {
		return n.empty.Only("link").Diff(look(t).Only("link")) == ""
	})
}

// wantNotOpen fails the test if the agent has a pod's network namespace open.
func (n *node) wantNotOpen(pod *ns.Netns) {
	n.t.Helper()
	fds, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", n.PID()))
	if err != nil || len(fds) == 0 {
		n.t.Fatalf("the agent's open files: %v, %v", fds, err)
	}
	for _, fd := range fds {
		var st unix.Stat_t
		if err := unix.Stat(fd, &st); err == nil && st.Dev == pod.Ref().Dev && st.Ino == pod.Ref().Ino {
			n.t.Errorf("the agent has the pod's network namespace open as %s", fd)
		}
	}
}

// cri-o #7010, #9097: a request that was repeated while the first one still ran
// was refused ("name is reserved"). Here all such requests get the same answer.
func TestAddWhileAddRuns(t *testing.T) {
	n := newNode(t, plain)
	pod := nettest.Pod(t)
	thaw := n.freeze()
	var runs []*run
	for range 3 {
		r := n.begin(call{verb: "ADD", container: "c", netns: pod.Ref().Path})
		r.asks()
		runs = append(runs, r)
	}
	thaw()
	var got []string
	for _, r := range runs {
		a, err := parse(r.end())
		must(t, err)
		got = append(got, a.result)
	}
	if got[0] != got[1] || got[1] != got[2] || len(programs.List(n.t, n.API)) != 1 {
		t.Errorf("%d attachments, and the answers:\n%s", len(programs.List(n.t, n.API)), strings.Join(got, "\n"))
	}
}

// plugins #752, #683, #810: rules of port maps and of the masquerade were left
// behind, one set a pod. Here the table is the same with and without pods.
func TestNoRuleIsAPods(t *testing.T) {
	n := newNode(t, plain)
	without := look(t).Only("nft", "rule")
	for i := range 3 {
		n.add(fmt.Sprint("c", i), nettest.Pod(t))
	}
	nettest.Same(t, without, look(t).Only("nft", "rule"), "pods have rules")
	n.restart()
	n.collect()
	n.wantNothing()
}

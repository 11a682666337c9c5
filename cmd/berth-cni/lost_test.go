package main

import (
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/cni"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/root"
	"github.com/berth-net/berth/test/programs"
)

// If the node does not tell of the link that leads into the pod, the link may be up: DEL does not
// succeed, and the runtime repeats it. A pod can bring about that the answer inside the pod is
// lost. That keeps no DEL.
func TestCutWithLostAnswer(t *testing.T) {
	programs.Need(t, "strace")
	for name, test := range map[string]struct {
		errno  string
		answer int // of the kernel: the first one in the pod, the second one on the node
		code   uint
	}{
		"on the node, no room":     {"ENOBUFS", 2, cni.CodeTryAgain},
		"on the node, none":        {"EAGAIN", 2, cni.CodeTryAgain},
		"on the node, a fault":     {"EIO", 2, cni.CodeTryAgain},
		"in the pod, no room":      {"ENOBUFS", 1, 0},
		"in the pod, a fault":      {"EIO", 1, 0},
		"nowhere, by interruption": {"EINTR", 2, 0},
	} {
		t.Run(name, func(t *testing.T) {
			a := newAway(t, t.TempDir())
			pod := nettest.Pod(t)
			a.lead(ownLink, pod, "eth0")
			a.stamp(ownLink, key)
			var out []byte
			nettest.Eventually(t, "the loss of the answer that is meant", func() (lost bool) {
				must(t, os.RemoveAll(filepath.Join(root.Dir(a.root).State(), "deletions")), netlink.LinkSetUp(nettest.Link(t, ownLink)))
				out, lost = a.lose(pod, test.errno, test.answer)
				return lost
			})
			var code uint
			if len(out) > 0 {
				code = failure(t, out)
			}
			if code != test.code || code != 0 && !strings.Contains(string(out), "the pod is not cut off") {
				t.Errorf("code %d: %s", code, out)
			}
			down := ""
			if test.errno == "EINTR" {
				down = ownLink
			}
			if r := a.one(); a.down() != down || r.Cut != (down != "") || r.Again != (code != 0) {
				t.Errorf("down are %q, queued is %+v", a.down(), r)
			}
		})
	}
}

// lose runs DEL without prevResult, and has a receipt of the kernel's answers fail. strace counts
// the receipts of each thread, and Go may change threads: lose reports whether the right one failed.
func (a *away) lose(pod *ns.Netns, errno string, answer int) (out []byte, lost bool) {
	a.Helper()
	trace := filepath.Join(a.root, "strace")
	cmd := exec.Command("strace", "-f", "-o", trace, "-e", "trace=setns,recvfrom",
		"-e", fmt.Sprintf("inject=recvfrom:error=%s:when=%d", errno, answer), filepath.Join(bin, "berth-cni"))
	for k, v := range podEnv("DEL") {
		cmd.Env = append(cmd.Env, k+"="+v)
	}
	cmd.Env = append(cmd.Env, "CNI_NETNS="+pod.Ref().Path)
	cmd.Stdin = strings.NewReader(conf(a.root, ""))
	out, _ = cmd.Output() // strace ends as the plugin does
	calls, err := os.ReadFile(trace)
	must(a, err)
	before, _, injected := strings.Cut(string(calls), "(INJECTED)")
	// One call of setns leads into the pod, and one back.
	return out, injected && strings.Count(before, "recvfrom(") == answer && strings.Count(before, "setns(") == answer
}

// A pod can tell any number as the index of its interface's other end. If the node has no link
// there, that keeps no DEL.
func TestPeer(t *testing.T) {
	nettest.Need(t)
	for _, index := range []uint32{0, math.MaxInt32, 1 << 31, math.MaxUint32} {
		if link, err := peer(index); link != nil || err != nil {
			t.Errorf("at %d is %v, %v", index, link, err)
		}
	}
	if link, err := peer(1); link.text(unix.IFLA_IFNAME) != "lo" || err != nil {
		t.Errorf("lo is %q, %v", link, err)
	}
}

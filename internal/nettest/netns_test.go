package nettest

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/berth-net/berth/internal/kernel/ns"
)

// netnsOf returns the network namespace that a command says it is in.
func netnsOf(t *testing.T, cmd *exec.Cmd) string {
	t.Helper()
	out, err := cmd.Output()
	Must(t, err)
	return strings.TrimSpace(string(out))
}

func TestCommand(t *testing.T) {
	node := Node(t)
	readlink := []string{"readlink", "/proc/self/ns/net"}
	if got := netnsOf(t, Command(node, readlink[0], readlink[1:]...)); !strings.Contains(node.Ref().String(), got) {
		t.Errorf("the command ran in %s, not in %s", got, node.Ref())
	}
	if got := netnsOf(t, exec.Command(readlink[0], readlink[1:]...)); strings.Contains(node.Ref().String(), got) {
		t.Errorf("a command without Command ran in %s too", node.Ref())
	}
	cmd := Command(node, "sh", "-c", `echo "$WORD"; exit 3`)
	cmd.Env = []string{"WORD=hello"}
	out, err := cmd.Output()
	if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) || exit.ExitCode() != 3 || string(out) != "hello\n" {
		t.Errorf("the command's output and end are %q, %v", out, err)
	}
	if err := Command(node, "no-such-program").Run(); !errors.Is(err, exec.ErrNotFound) {
		t.Errorf("a missing program: %v", err)
	}
	Delete(t, node)
	if out, err := Command(node, "true").CombinedOutput(); err == nil || !strings.Contains(string(out), "gone") {
		t.Errorf("in a deleted node: %v\n%s", err, out)
	}
}

func TestRun(t *testing.T) {
	pod := Pod(t)
	own := Snapshot(t, nil).Only("link")
	Run(t, pod, "ip link add here type veth peer name there")
	if links := Snapshot(t, pod).Only("link").String(); !strings.Contains(links, "here") {
		t.Errorf("the pod has the links\n%s", links)
	}
	Same(t, own, Snapshot(t, nil).Only("link"), "the node's own links change by")
	Run(t, nil, "ip link add here type veth peer name there")
	Run(t, nil, "ip link del here")
	Run(t, pod, "ip link del here")
	for _, at := range []*ns.Netns{pod, nil} {
		r := Record(t, func(t testing.TB) { Run(t, at, "ip link del here") })
		if !r.Failed || !strings.Contains(r.Said, "ip link del here: ") || !strings.Contains(r.Said, "Cannot find device") {
			t.Errorf("of a command that fails it says %q", r.Said)
		}
	}
}

func TestDelete(t *testing.T) {
	before := Snapshot(t, nil).Only("mount")
	pod := Pod(t)
	path := pod.Ref().Path
	if diff := before.Diff(Snapshot(t, nil).Only("mount")); !strings.HasPrefix(diff, "+mount "+path) {
		t.Errorf("a pod at %s changes mounts by:\n%s", path, diff)
	}
	Delete(t, pod)
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s after Delete: %v", path, err)
	}
	Same(t, before, Snapshot(t, nil).Only("mount"), "left behind")
	Delete(t, pod)
	if _, err := pod.Ref().Open(); !errors.Is(err, ns.ErrGone) {
		t.Errorf("opening what is deleted: %v", err)
	}
	var sub string
	t.Run("cleanup", func(t *testing.T) { sub = Pod(t).Ref().Path })
	if _, err := os.Lstat(sub); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s after its test: %v", sub, err)
	}
}

func TestEventually(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		Eventually(t, "the third question", func() bool { asked++; return asked == 3 })
		if asked != 3 {
			t.Errorf("asked %d times", asked)
		}
		r := Record(t, func(t testing.TB) { Eventually(t, "the moon", func() bool { return false }) })
		if !r.Failed || !strings.Contains(r.Said, "the moon") {
			t.Errorf("it says %q of what never comes", r.Said)
		}
	})
}

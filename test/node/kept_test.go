package node

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/boottime"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/test/programs"
)

// The scripts of processes that wait for $0, and become the plugin $1. The wrapper waits for
// a child before.
const (
	worker  = `read <"$0"; exec "$1"`
	wrapper = `conf=$(cat); read <"$0"; exec "$1" <<<"$conf"`
)

// keptReady begins a process that waits, and that becomes the plugin when the test calls become. A
// process that begins afterwards is younger, also by the kernel's ticks.
func (a *agent) keptReady(script, verb, container, pod string, keys ...string) (become func() error) {
	a.t.Helper()
	plugin := a.command(verb, container, pod, keys...)
	fifo := filepath.Join(a.t.TempDir(), "fifo")
	must(a.t, unix.Mkfifo(fifo, 0o600))
	var out bytes.Buffer
	cmd := exec.Command("bash", "-c", script, fifo, plugin.Path)
	cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = append(plugin.Env, "PATH="+os.Getenv("PATH")), plugin.Stdin, &out, &out
	must(a.t, cmd.Start())
	a.t.Cleanup(func() { _ = cmd.Process.Kill() })
	const tick = 10e6 // ns
	made := boottime.Now()
	nettest.Eventually(a.t, "the tick to end", func() bool { return boottime.Now() > made+2*tick })
	return func() error {
		a.t.Helper()
		must(a.t, os.WriteFile(fifo, []byte("now\n"), 0o600))
		if err := cmd.Wait(); err != nil {
			return programs.Refusal(out.Bytes(), err, "")
		}
		return nil
	}
}

// A runtime has processes ready, which become the plugin. A process that was begun before an ADD, and
// that the runtime tells to DEL after the ADD, succeeds only if the pod is cut off. Otherwise the DEL
// says "try again", and the runtime's next process cuts the pod off. Former plugins spared the pod for
// good.
//
// The same holds for a wrapper that the runtime began for a DEL before the ADD, and that waits
// for a child before it becomes the plugin: former plugins took the successor's link for the
// one to cut.
func TestDelInAProcessKeptReady(t *testing.T) {
	for name, c := range map[string]struct {
		script string
		away   bool
	}{
		"agent": {worker, false}, "no agent": {worker, true},
		"wrapper, agent": {wrapper, false}, "wrapper, no agent": {wrapper, true},
	} {
		t.Run(name, func(t *testing.T) {
			away := c.away
			a := startAgent(t, pools)
			pod, other := nettest.Pod(t), nettest.Pod(t)
			a.add("other", other)
			del := a.keptReady(c.script, "DEL", "c", pod.Ref().Path)
			is := a.add("c", pod)
			if away {
				a.kill()
			}
			programs.WantError(t, del(), 11, "repeat DEL")
			pingAll(t, other, is) // until the runtime repeats DEL
			if err := a.tryDel("c", pod.Ref().Path); err != nil {
				t.Errorf("the DEL of a new process: %v", err)
			}
			for _, addr := range is.addrs {
				nettest.NoPing(t, other, addr)
			}
			if away {
				a.start()
			}
			nettest.Eventually(t, "one pod to be left", func() bool { return len(a.list()) == 1 })
		})
	}
}

// An ADD, and a DEL of a pod that was there before the process began, work as in a new process.
func TestVerbsInProcessesKeptReady(t *testing.T) {
	a := startAgent(t, pools)
	pod := nettest.Pod(t)
	add := a.keptReady(worker, "ADD", "c", pod.Ref().Path)
	other := a.add("other", nettest.Pod(t))
	if err := add(); err != nil {
		t.Error(err)
	}
	nettest.Ping(t, pod, other.addrs[0])
	del := a.keptReady(worker, "DEL", "c", pod.Ref().Path)
	a.add("another", nettest.Pod(t))
	if err := del(); err != nil {
		t.Error(err)
	}
	nettest.Eventually(t, "two pods to be left", func() bool { return len(a.list()) == 2 })
}

// A GC in a process that was begun before an ADD spares the pod, which its list cannot have.
func TestGCInAProcessKeptReady(t *testing.T) {
	for name, script := range map[string]string{"worker": worker, "wrapper": wrapper} {
		t.Run(name, func(t *testing.T) {
			a := startAgent(t, pools)
			a.add("old", nettest.Pod(t))
			gc := a.keptReady(script, "GC", "", "", `"cni.dev/valid-attachments":[]`)
			is := a.add("c", nettest.Pod(t))
			if err := gc(); err != nil {
				t.Error(err)
			}
			nettest.Eventually(t, "the old pod to go", func() bool { return len(a.list()) == 1 })
			if left := a.list(); left[0].HostVeth != is.host || left[0].State != "attached" {
				t.Errorf("left is %+v, not the pod that was attached since", left)
			}
		})
	}
}

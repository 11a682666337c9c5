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

// keptReady begins a process that waits, and becomes the plugin when it is told to by
// become. What begins afterwards is younger than it, also for the kernel, which tells in
// ticks.
func (a *agent) keptReady(verb, container, pod string, keys ...string) (become func() error) {
	a.t.Helper()
	plugin := a.command(verb, container, pod, keys...)
	fifo := filepath.Join(a.t.TempDir(), "fifo")
	must(a.t, unix.Mkfifo(fifo, 0o600))
	var out bytes.Buffer
	cmd := exec.Command("bash", "-c", `read <"$0"; exec "$1"`, fifo, plugin.Path)
	cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = plugin.Env, plugin.Stdin, &out, &out
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

// A runtime has processes ready, which become the plugin. One that was begun before an
// ADD, and is told to DEL behind it, succeeds only if the pod is cut off: it says "try
// again", and that a new process tries. Before, it spared the pod for good.
func TestDelInAProcessKeptReady(t *testing.T) {
	for name, away := range map[string]bool{"agent": false, "no agent": true} {
		t.Run(name, func(t *testing.T) {
			a := startAgent(t, pools)
			pod, other := nettest.Pod(t), nettest.Pod(t)
			a.add("other", other)
			del := a.keptReady("DEL", "c", pod.Ref().Path)
			is := a.add("c", pod)
			if away {
				a.kill()
			}
			programs.WantError(t, del(), 11, "repeat DEL")
			pingAll(t, other, is) // until it is repeated
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

// An ADD, and a DEL of what was there before the process was begun, are as in a new
// process.
func TestVerbsInProcessesKeptReady(t *testing.T) {
	a := startAgent(t, pools)
	pod := nettest.Pod(t)
	add := a.keptReady("ADD", "c", pod.Ref().Path)
	other := a.add("other", nettest.Pod(t))
	if err := add(); err != nil {
		t.Error(err)
	}
	nettest.Ping(t, pod, other.addrs[0])
	del := a.keptReady("DEL", "c", pod.Ref().Path)
	a.add("another", nettest.Pod(t))
	if err := del(); err != nil {
		t.Error(err)
	}
	nettest.Eventually(t, "two pods to be left", func() bool { return len(a.list()) == 2 })
}

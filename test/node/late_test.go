package node

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/test/programs"
	"github.com/vishvananda/netlink"
)

// stopped starts a DEL that stops (SIGSTOP) behind its first system call of a name. goOn
// lets the DEL go on, and waits for its end.
func (a *agent) stopped(call, container, pod string, keys ...string) (goOn func()) {
	a.t.Helper()
	return a.stoppedVerb("net", "DEL", call, container, pod, keys...)
}

// stoppedVerb is stopped for any verb and network.
func (a *agent) stoppedVerb(network, verb, call, container, pod string, keys ...string) (goOn func()) {
	a.t.Helper()
	programs.Need(a.t, "strace")
	del := a.commandIn(network, verb, container, pod, keys...)
	trace := filepath.Join(a.t.TempDir(), "strace")
	inject := fmt.Sprintf("inject=%s:signal=SIGSTOP:when=1", call)
	cmd := exec.Command("strace", "-f", "-qq", "-o", trace, "-e", "trace="+call, "-e", inject, del.Path)
	var out bytes.Buffer
	cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = append(del.Env, "PATH="+os.Getenv("PATH")), del.Stdin, &out, &out
	must(a.t, cmd.Start())
	a.t.Cleanup(func() { _ = cmd.Process.Kill() })
	nettest.Eventually(a.t, verb+" to stop at "+call, func() bool {
		raw, _ := os.ReadFile(trace)
		return strings.Contains(string(raw), "stopped by SIGSTOP")
	})
	return func() {
		a.t.Helper()
		tracer := cmd.Process.Pid
		raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", tracer, tracer))
		must(a.t, err)
		plugin, err := strconv.Atoi(strings.Fields(string(raw))[0])
		must(a.t, err)
		ended := make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		for { // strace stops each of its threads once
			select {
			case err := <-ended:
				if err != nil {
					a.t.Errorf("the late %s: %v: %s", verb, err, out.String())
				}
				return
			case <-time.After(10 * time.Millisecond):
				_ = unix.Kill(plugin, unix.SIGCONT)
			}
		}
	}
}

// wantUp fails unless a pod's link is there and up.
func wantUp(t *testing.T, is attached) {
	t.Helper()
	link, err := netlink.LinkByName(is.host)
	if err != nil || link.Attrs().Flags&net.FlagUp == 0 {
		t.Errorf("a late DEL of the pod before it has hit %s: %v, %+v", is.host, err, link)
	}
}

// A DEL without an agent stops before its cut, before or after it has written its queue file. An
// agent comes, attaches the same container again in the same network namespace, and dies. The
// DEL goes on, and spares the new attachment.
func TestLateDelSparesItsSuccessor(t *testing.T) {
	for _, call := range []string{"connect", "setns"} { // before the DEL has written the queue file, and after it has
		t.Run(call, func(t *testing.T) {
			a := startAgent(t, pools)
			pod, other := nettest.Pod(t), nettest.Pod(t)
			a.add("other", other)
			a.add("c", pod)
			a.kill()
			goOn := a.stopped(call, "c", pod.Ref().Path)
			a.start()
			if call == "setns" {
				nettest.Eventually(t, "the queued deletion to be done", func() bool { return len(a.list()) == 1 })
			}
			heir := a.add("c", pod)
			a.kill()
			goOn()
			wantUp(t, heir)
			pingAll(t, other, heir)
			a.start()
			wantUp(t, heir)
			a.releaseAll()
		})
	}
}

// A DEL without an agent stops before its cut. An agent comes, answers the same ADD again, and
// makes the link again, or its alias, that another program has taken away; and dies. The DEL
// goes on, and spares the attachment that was asked for again since. The DEL spares it even if the
// ledger was lost meanwhile, and only the link tells of the later ADD.
func TestLateDelSparesWhatWasMended(t *testing.T) {
	for name, damage := range map[string]string{"link": "ip link del ", "alias": "ip link set alias mine "} {
		t.Run(name, func(t *testing.T) {
			a := startAgent(t, pools)
			pod, other := nettest.Pod(t), nettest.Pod(t)
			a.add("other", other)
			a.add("c", pod)
			a.kill()
			goOn := a.stopped("connect", "c", pod.Ref().Path)
			a.start()
			heir := a.add("c", pod)
			nettest.Run(t, nil, damage+heir.host)
			nettest.Eventually(t, "it to be mended", func() bool {
				link, err := netlink.LinkByName(heir.host)
				return err == nil && link.Attrs().Flags&net.FlagUp != 0 && strings.HasPrefix(link.Attrs().Alias, "berth ")
			})
			a.kill()
			goOn()
			if wantUp(t, heir); t.Failed() {
				return
			}
			pingAll(t, other, heir)
			must(t, os.Remove(a.root.Ledger()))
			a.rebuildLedger()
			a.start()
			wantUp(t, heir)
			if n := len(a.list()); n != 2 {
				t.Errorf("%d attachments, want two", n)
			}
			a.releaseAll()
		})
	}
}

// A DEL stops before it has asked the agent. The same ADD is answered again, and the agent
// dies. The DEL goes on, and is older than the last ADD, as the link's alias says, also if the
// pod's names are too long for the alias.
func TestLateDelSparesLongNames(t *testing.T) {
	for name, size := range map[string]int{"short": 10, "long": 128} {
		t.Run(name, func(t *testing.T) {
			a := startAgent(t, pools)
			pod := nettest.Pod(t)
			network, container := strings.Repeat("n", size), strings.Repeat("c", size)
			add := func() []byte {
				t.Helper()
				raw, err := a.execIn(network, "ADD", container, pod.Ref().Path)
				must(t, err)
				return raw
			}
			first := add()
			goOn := a.stoppedVerb(network, "DEL", "connect", container, pod.Ref().Path, `"prevResult":`+string(first))
			heir, err := programs.ReadResult(add())
			must(t, err)
			a.kill()
			goOn()
			wantUp(t, attached{heir.Addrs, heir.Host})
			if _, err := a.execIn(network, "DEL", container, pod.Ref().Path, `"prevResult":`+string(first)); err != nil {
				t.Errorf("a new DEL: %v", err)
			}
			if link := nettest.Link(t, heir.Host); link.Attrs().Flags&net.FlagUp != 0 {
				t.Error("a new DEL has not cut the pod off")
			}
			a.start()
			a.wantGone()
		})
	}
}

// A DEL of the first of two incarnations is on its way while the ledger is lost and made anew.
// The DEL is older than the second incarnation, as the second incarnation's link tells.
func TestLateDelBehindRebuild(t *testing.T) {
	a := startAgent(t, pools)
	first, second := nettest.Pod(t), nettest.Pod(t)
	result, err := a.exec("ADD", "c", first.Ref().Path)
	must(t, err)
	goOn := a.stopped("socket", "c", first.Ref().Path, `"prevResult":`+string(result))
	a.del("c", wait)
	heir := a.add("c", second)
	a.kill()
	must(t, os.Remove(a.root.Ledger()))
	a.rebuildLedger()
	a.start()
	goOn()
	wantUp(t, heir)
	if n := len(a.list()); n != 1 {
		t.Errorf("%d attachments, want one", n)
	}
	a.releaseAll()
}

// A runtime repeats the DEL of a pod that is long gone, while no agent runs. The addresses in
// the former result belong to nobody, and other pods get them at once.
func TestRepeatedDelTakesNoAddress(t *testing.T) {
	a := startAgent(t, "--pool=default=10.88.0.4/31")
	a.kill()
	const result = `"prevResult":{"cniVersion":"1.1.0","interfaces":[{"name":"babcdefghij2345"},{"name":"eth0","sandbox":"/x"}],` +
		`"ips":[{"address":"10.88.0.4/32"},{"address":"10.88.0.5/32"}]}`
	must(t, a.tryDel("gone", "", result))
	a.start()
	a.podsOf(2)
}

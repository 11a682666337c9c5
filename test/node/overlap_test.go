package node

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/berth-net/berth/internal/nettest"
)

// A pool that overlaps what somebody else on the node uses is refused: at the start, by
// --check-config and at SIGHUP. Berth's own links and routes are no overlap, nor are those of
// a former run. An agent starts all the same while pods have addresses of the pool, and tells of the
// overlap.
func TestOverlap(t *testing.T) {
	const overlaps = "overlaps the address 10.88.0.129/25 of cni0"
	cni0 := func(there bool) {
		t.Helper()
		if !there {
			nettest.Run(t, nil, "ip link del cni0")
			return
		}
		nettest.Run(t, nil, "ip link add cni0 type bridge")
		nettest.Run(t, nil, "ip link set cni0 up")
		nettest.Run(t, nil, "ip addr add 10.88.0.129/25 dev cni0")
	}
	t.Cleanup(func() { _ = exec.Command("ip", "link", "del", "cni0").Run() }) // other tests have this pool, too
	a := newAgent(t, nil)
	t.Cleanup(func() { a.releaseAll(); a.remove() })
	check := func(want string) {
		t.Helper()
		cmd := a.berthd("--check-config")
		said := &text{}
		cmd.Stdout, cmd.Stderr = said, said
		if err := runFor(cmd); (err == nil) != (want == "fine") || !strings.Contains(said.String(), want) {
			t.Errorf("--check-config: %v, %s, want %q", err, said, want)
		}
	}
	const one, two = "pools: [{name: a, cidrs: [10.88.0.0/24]}]\n", "pools: [{name: a, cidrs: [10.88.0.0/24]}, {name: b, cidrs: [10.99.0.0/24]}]\n"
	a.configure(one)
	cni0(true)
	a.refused("pool a: 10.88.0.0/24 " + overlaps)
	check("pool a: 10.88.0.0/24 " + overlaps)
	cni0(false)
	check("fine")

	a.start()
	pods, got := a.podsOf(2)
	check("fine") // with its own routes and links
	nettest.Run(t, nil, "ip route add blackhole 10.99.0.64/26")
	a.configure(two)
	a.reload(notInForce)
	if want := "pool b: 10.99.0.0/24 overlaps the route 10.99.0.64/26"; !strings.Contains(a.log.String(), want) {
		t.Errorf("a refused SIGHUP does not say %q:\n%s", want, a.log)
	}
	nettest.Run(t, nil, "ip route del blackhole 10.99.0.64/26")
	a.reload(inForce)

	a.kill()
	check("fine") // with what the former run has left
	cni0(true)
	a.start()
	nettest.Eventually(t, "the status to say that the pool overlaps", func() bool {
		st, err := a.api.Status(context.Background(), "")
		return err == nil && len(st.Overlaps) == 1 && strings.Contains(st.Overlaps[0], overlaps)
	})
	nettest.Eventually(t, "the log to say that the pool overlaps", func() bool { return strings.Contains(a.log.String(), overlaps) })
	pingAll(t, pods[0], got[1])
	if out, err := exec.Command(a.bin+"/berth", "--root", string(a.root), "status").CombinedOutput(); err != nil || !strings.Contains(string(out), overlaps) {
		t.Errorf("berth status: %v\n%s", err, out)
	}
	a.reload(inForce) // pods have addresses of the pool

	a.del("c0", wait)
	a.del("c1", wait)
	a.stop()
	a.refused("pool a: 10.88.0.0/24 " + overlaps)
	cni0(false)
	a.start()
}

// Two agents of a node have no CIDR in common: each would give out addresses that rest with the other
// agent or belong to its pods. The second agent is refused at the start, by --check-config and at
// SIGHUP, as long as the first agent runs. Things that a stopped agent has left keep no other
// agent from starting, because the stopped agent may never come back; the status names these things.
func TestOverlapOfAgents(t *testing.T) {
	const one, other = "pools: [{name: a, cidrs: [10.88.0.0/24]}]\n", "pools: [{name: a, cidrs: [10.89.0.0/24]}]\n"
	const overlaps = "pool a: 10.88.0.0/24 overlaps the pool's route 10.88.0.0/24 of another agent"
	first, second := newAgent(t, nil), newAgent(t, nil)
	t.Cleanup(func() { first.releaseAll(); first.remove() })
	t.Cleanup(func() { second.releaseAll(); second.remove() })
	check := func(a *agent, want string) {
		t.Helper()
		out, err := a.berthd("--check-config").CombinedOutput()
		if (err == nil) != (want == "fine") || !strings.Contains(string(out), want) {
			t.Errorf("--check-config: %v, %s, want %q", err, out, want)
		}
	}
	first.configure(one)
	first.start()
	runs := func() string {
		return fmt.Sprintf("%s (process %d, --root %s)", overlaps, first.cmd.Process.Pid, first.root)
	}
	second.configure(one)
	check(second, runs()) // no agent ran there yet
	second.refused(runs())
	check(second, runs())
	check(first, "fine")
	must(t, os.Remove(first.root.Instance()))
	check(first, "fine") // the marker says which agent this is
	first.stop()
	first.start() // writes the file again

	second.configure(other)
	second.start()
	second.configure(one)
	second.reload(notInForce)
	if !strings.Contains(second.log.String(), runs()) {
		t.Errorf("a refused SIGHUP does not say %q:\n%s", runs(), second.log)
	}
	second.stop()

	first.kill()
	check(second, "fine")
	second.start()
	nettest.Eventually(t, "the status to say what the first agent left", func() bool {
		st, err := second.api.Status(context.Background(), "")
		return err == nil && len(st.Overlaps) == 1 && strings.Contains(st.Overlaps[0], overlaps+", which does not run")
	})
	first.refused(strings.ReplaceAll(overlaps, "another agent", fmt.Sprintf("another agent (process %d", second.cmd.Process.Pid)))
	second.stop()
}

package node

import (
	"context"
	"os/exec"
	"strings"
	"testing"

	"github.com/berth-net/berth/internal/nettest"
)

// A pool that overlaps what somebody else on the node uses is refused: at the start, by
// --check-config and at SIGHUP. Berth's own links and routes are no overlap, nor are those of
// a former run. An agent starts all the same while pods have addresses of the pool, and says so.
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
	if !strings.Contains(a.log.String(), overlaps) {
		t.Errorf("the log does not say that the pool overlaps:\n%s", a.log)
	}
	pingAll(t, pods[0], got[1])
	if out, err := exec.Command(a.bin+"/berth", "--root", string(a.root), "status").CombinedOutput(); err != nil || !strings.Contains(string(out), overlaps) {
		t.Errorf("berth status: %v\n%s", err, out)
	}
	a.reload(inForce) // pods have addresses of it

	a.del("c0", wait)
	a.del("c1", wait)
	a.stop()
	a.refused("pool a: 10.88.0.0/24 " + overlaps)
	cni0(false)
	a.start()
}

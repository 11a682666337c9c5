package node

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/test/programs"
)

// overlapped starts another agent with the pool of the first agent. The other agent refuses to start
// while the first agent runs, and starts while the first agent is away. The first agent starts again,
// because its pods have addresses of the pool.
func (a *agent) overlapped(other *agent) {
	a.t.Helper()
	other.refused("of another agent (process")
	a.kill()
	other.start()
	a.start()
}

// seen is what neighbours must leave alone, of the node and of pods.
func seen(t *testing.T) nettest.State {
	return nettest.Snapshot(t, nil).Without("sysctl", "mount").Deliberate()
}

// Three agents live in one network namespace, two of them with the same pool, and use the same
// network, container and interface names. Whatever happens to the others, the first agent's
// things stay as they were.
func TestNeighboursLeaveEachOtherAlone(t *testing.T) {
	hasAddresses(t)
	first := startAgent(t, pools)
	pods, got := first.podsOf(3)
	alone := seen(t)

	same := newAgent(t, nil, "--pool=default=10.88.0.128/25,fd00:88::8000/113") // lies in the first agent's pool
	other := newAgent(t, nil, "--pool=default=10.99.0.0/24")
	all := []*agent{first, same, other}
	first.overlapped(same)
	other.start()

	// All at once, each with containers c0 to c3 of its own.
	var busy sync.WaitGroup
	for _, a := range all[1:] {
		for i := range 4 {
			pod := nettest.Pod(t)
			busy.Go(func() {
				id := fmt.Sprint("c", i)
				if _, err := a.tryAdd(id, pod); err != nil {
					t.Errorf("ADD of %s: %v", id, err)
				}
				if i%2 == 1 {
					if err := a.tryDel(id, "", wait); err != nil {
						t.Errorf("DEL of %s: %v", id, err)
					}
				}
			})
		}
	}
	busy.Wait()
	for _, a := range all {
		a.wantClean()
	}
	if n := []int{len(first.list()), len(same.list()), len(other.list())}; n[0] != 3 || n[1] != 2 || n[2] != 2 {
		t.Errorf("the agents have %v attachments, want 3, 2 and 2", n)
	}
	reached(t, pods[0], got[1], other.list())

	// One agent collects garbage, and nothing is valid.
	if _, err := same.exec("GC", "", "", `"cni.dev/valid-attachments":[]`); err != nil {
		t.Errorf("GC: %v", err)
	}
	same.wantGone()
	if n := []int{len(first.list()), len(other.list())}; n[0] != 3 || n[1] != 2 {
		t.Errorf("after another's GC the agents have %v attachments, want 3 and 2", n)
	}
	reached(t, pods[0], got[1], other.list())

	// One agent is killed, started again and removed.
	other.kill()
	for i := range pods {
		pingAll(t, pods[i], got[(i+1)%3])
	}
	first.wantClean()
	other.start()
	other.wantClean()
	other.releaseAll()
	other.remove()
	same.remove()
	nettest.Same(t, alone, seen(t), "the neighbours are gone, and the first agent's things have changed")
	first.wantClean()
	for i := range pods {
		pingAll(t, pods[i], got[(i+1)%3])
	}
}

// nodeAddrs are the node's own addresses, if a test has called hasAddresses.
var nodeAddrs = []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")}

// hasAddresses gives the node the addresses with which it answers pods and masquerades.
func hasAddresses(t *testing.T) {
	t.Helper()
	nettest.Need(t)
	for _, addr := range nodeAddrs {
		nettest.Run(t, nil, fmt.Sprintf("ip addr add %s dev lo", addr))
		t.Cleanup(func() { nettest.Run(t, nil, fmt.Sprintf("ip addr del %s dev lo", addr)) })
	}
	nettest.Eventually(t, "the addresses to be in use", func() bool {
		return strings.Contains(nettest.Snapshot(t, nil).Only("route").String(), "inet6 local 2001:db8::1/128")
	})
}

// reached pings a pod of the same agent, and the pods of another agent.
func reached(t *testing.T, from *ns.Netns, to attached, others []api.Attachment) {
	t.Helper()
	pingAll(t, from, to)
	for _, o := range others {
		for _, addr := range o.Addresses {
			nettest.Ping(t, from, netip.MustParseAddr(addr))
		}
	}
}

// An address that a neighbour's pod has cannot be given again: an ADD that asks for it says
// so, and leaves nothing behind; another ADD gets an address that is nobody's. The neighbour's pod keeps its
// packets.
func TestNeighboursAddress(t *testing.T) {
	for _, c := range []struct{ addr, pool string }{
		{"10.88.0.1", "10.88.0.0/24"}, {"fd00:88::1", "fd00:88::/64"},
	} {
		t.Run(c.addr, func(t *testing.T) {
			first := startAgent(t, pools)
			pods, got := first.podsOf(2)
			same := newAgent(t, nil, "--pool=default="+c.pool)
			first.overlapped(same)
			t.Cleanup(func() { same.releaseAll(); same.remove() })
			pod := nettest.Pod(t)
			nettest.Run(t, pod, "ip link set lo up")
			before, inside := seen(t), nettest.Snapshot(t, pod)
			_, err := same.tryAdd("c0", pod, `"runtimeConfig":{"ips":["`+c.addr+`"]}`)
			programs.WantError(t, err, 101, "requested address "+c.addr)
			same.del("c0")
			same.wantGone()
			nettest.Same(t, before, seen(t), "the refused ADD changed")
			nettest.Same(t, inside, nettest.Snapshot(t, pod), "the refused ADD changed")
			pingAll(t, pods[1], got[0])
			first.wantClean()
			theirs := slices.Concat(got[0].addrs, got[1].addrs)
			if own := same.add("c0", pod).addrs; slices.ContainsFunc(own, func(a netip.Addr) bool { return slices.Contains(theirs, a) }) {
				t.Errorf("a pod got %v, and the neighbour's have %v", own, theirs)
			}
			same.wantClean()
			first.wantClean()
		})
	}
}

// --remove gives back what the agent itself has, and refuses while a pod is
// attached.
func TestRemove(t *testing.T) {
	empty := seen(t)
	a := startAgent(t, pools)
	pods, got := a.podsOf(2)
	a.stop()
	full := seen(t)
	if err := runFor(a.berthd("--remove")); err == nil {
		t.Error("--remove with two pods attached succeeds")
	}
	nettest.Same(t, full, seen(t), "the refused --remove changed")
	pingAll(t, pods[0], got[1])
	a.start()
	under, said := a.berthd("--remove"), &text{}
	under.Stderr = said
	if err := runFor(under); err == nil || !strings.Contains(said.String(), "berthd: stop the agent first (systemctl stop berthd): ") {
		t.Errorf("--remove under a running agent: %v, %s", err, said)
	}
	a.del("c0", wait)
	a.del("c1", wait)
	a.remove()
	nettest.Same(t, empty, seen(t), "--remove left")
	a.remove() // a second --remove does nothing
}

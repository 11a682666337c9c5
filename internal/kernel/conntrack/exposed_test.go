package conntrack_test

import (
	"net/netip"
	"testing"

	"github.com/berth-net/berth/internal/kernel/conntrack"
	"github.com/berth-net/berth/internal/nettest"
)

// ForgetExposed deletes entries of connections that leave the pools with their own source,
// that go to a blocked address, or that pretend to come from one, and those between pods, or
// of a pod with the node, which anybody may have made in the pod's name. It deletes no others.
func TestForgetExposed(t *testing.T) {
	table := open(t)
	nettest.Run(t, nil, "ip addr add 192.0.2.9/32 dev lo")
	t.Cleanup(func() { nettest.Run(t, nil, "ip addr del 192.0.2.9/32 dev lo") })
	const pod, pod6, other, beyond, node = "10.88.0.7", "fd00:88::7", "10.88.0.8", "192.0.2.1", "192.0.2.9"
	enter(t, 0, 1, pod, beyond, beyond, node)                               // masqueraded
	enter(t, 0, 3, pod, "203.0.113.5", other, pod)                          // between pods, by a service's address
	enter(t, 0, 4, pod, "172.16.0.1", "172.16.0.1", pod)                    // excluded
	enterAt(t, 80, 0, 12, node, "169.254.169.254", "169.254.169.254", node) // the node itself
	enter(t, 0, 13, pod, "169.254.169.254", "169.254.169.254", node)        // asks for a name
	enter(t, 0, 5, beyond, pod, pod, beyond)                                // from outside
	enter(t, 0, 14, node, pod, pod, node)                                   // from the node
	enterTCP(t, pod, established, 1, other)                                 // between pods, by a handshake
	enter(t, 0, 15, pod, "203.0.113.5", node, pod)                          // to the node, by a service's address
	want := entries(t)
	enter(t, 0, 2, pod, other, other, pod)  // between pods
	enter(t, 0, 17, pod, node, node, pod)   // to the node
	enter(t, 0, 18, pod6, pod6, pod6, pod6) // to itself
	enter(t, 0, 6, pod, beyond, beyond, pod)
	enter(t, 7, 7, pod, beyond, beyond, pod)                 // in a zone
	enter(t, 0, 8, pod, "203.0.113.5", beyond, pod)          // by a service's address
	enter(t, 0, 9, pod6, "2001:db8::1", "2001:db8::1", pod6) // IPv6
	enterAt(t, 80, 0, 10, pod, "169.254.169.254", "169.254.169.254", node)
	enterAt(t, 80, 0, 11, pod, "203.0.113.5", "169.254.169.254", node) // by a service's address
	enter(t, 0, 16, "169.254.169.254", pod, pod, "169.254.169.254")    // pretends to come from a blocked address

	prefixes := func(list ...string) (ps []netip.Prefix) {
		for _, p := range list {
			ps = append(ps, netip.MustParsePrefix(p))
		}
		return ps
	}
	must(t, table.ForgetExposed(conntrack.Rules{
		Pools: prefixes("10.88.0.0/16", "fd00:88::/64"), Masquerade: true,
		Excluded: prefixes("172.16.0.0/12"), Blocked: prefixes("169.254.0.0/16"),
	}))
	nettest.Eventually(t, "those alone to be gone", func() bool { return entries(t) == want })
}

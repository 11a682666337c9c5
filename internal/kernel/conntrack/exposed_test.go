package conntrack_test

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/berth-net/berth/internal/cidrs"
	"github.com/berth-net/berth/internal/kernel/conntrack"
	"github.com/berth-net/berth/internal/nettest"
)

// ForgetExposed deletes entries of connections that leave the pools with their own source, that go
// to a blocked address, or that pretend to come from one, and flows that use the number of a host
// port for a program of the node, or for masquerade. If the rules were missing for a while, it
// also deletes entries between pods, or of a pod with the node, because anybody may have made them
// in the pod's name. It deletes no other entries.
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
	enterAt(t, 53, 0, 20, beyond, node, node, beyond)                       // to a program of the node
	enterAt(t, 80, 0, 21, beyond, node, pod, beyond)                        // by a host port
	enter(t, 0, 80, pod, "172.16.0.1", "172.16.0.1", pod)                   // excluded, from the number of a host port
	want := entries(t)
	enter(t, 0, 2, pod, other, other, pod)           // between pods
	enterAt(t, 81, 0, 23, beyond, node, pod, beyond) // by a port that leads nowhere
	enter(t, 0, 17, pod, node, node, pod)            // to the node
	enter(t, 0, 18, pod6, pod6, pod6, pod6)          // to itself
	unmissed := entries(t)
	enter(t, 0, 80, pod, beyond, beyond, node)               // masquerade has given it what is a host port now
	enterAt(t, 55, 0, 80, "10.89.0.7", beyond, beyond, node) // the same, in another agent's pool
	enterAt(t, 80, 0, 22, beyond, node, node, beyond)        // to the node by a host port that was not mapped yet
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
	rules := conntrack.Rules{
		Pools: prefixes("10.88.0.0/16", "fd00:88::/64"), Masquerade: true,
		Excluded: cidrs.Of(prefixes("172.16.0.0/12")...), Blocked: prefixes("169.254.0.0/16"),
		HostPort: func(protocol string, at netip.AddrPort) bool {
			return protocol == "udp" && at == netip.MustParseAddrPort("192.0.2.9:80")
		},
		Leads: func(protocol string, at, to netip.AddrPort) bool {
			return protocol == "udp" && at == netip.MustParseAddrPort("192.0.2.9:80") && to.Addr() == netip.MustParseAddr(pod)
		},
	}
	must(t, table.ForgetExposed(rules))
	nettest.Eventually(t, "all to be gone that the rules would not have let begin", func() bool { return entries(t) == unmissed })
	rules.Missed = true
	must(t, table.ForgetExposed(rules))
	nettest.Eventually(t, "those to be gone that anybody may have begun", func() bool { return entries(t) == want })
}

// ForgetMapped deletes the flows that used a port before it became a pod's host port: flows to the node
// itself, flows to the port's former pod, and flows of any pool to which masquerade has given the port. It deletes no other flows, such
// as flows between pods.
func TestForgetMapped(t *testing.T) {
	table := open(t)
	nettest.Run(t, nil, "ip addr add 192.0.2.9/32 dev lo")
	t.Cleanup(func() { nettest.Run(t, nil, "ip addr del 192.0.2.9/32 dev lo") })
	const pod, other, beyond, node = "10.88.0.7", "10.88.0.8", "192.0.2.1", "192.0.2.9"
	enter(t, 0, 1, pod, other, other, pod)              // between pods
	enter(t, 0, 2, pod, beyond, beyond, pod)            // not masqueraded
	enter(t, 0, 3, pod, beyond, beyond, node)           // masqueraded
	enter(t, 0, 4, pod, node, node, pod)                // to the node
	enterAt(t, 54, 0, 80, node, beyond, beyond, node)   // of a program of the node
	enter(t, 0, 80, pod, other, other, pod)             // from the number of a host port
	enterAt(t, 53, 0, 20, beyond, node, node, beyond)   // to a program of the node
	enterAt(t, 80, 0, 21, beyond, node, pod, beyond)    // by the host port
	enterAt(t, 80, 0, 22, beyond, other, other, beyond) // to the same port of another machine
	enterTCP(t, pod, established, 80, other)            // a TCP connection
	enterAt(t, 81, 0, 25, beyond, node, pod, beyond)    // by another port
	want := entries(t)
	enterAt(t, 81, 0, 26, beyond, node, other, beyond)       // by another port, which has led there by mistake
	enter(t, 0, 80, pod, beyond, beyond, node)               // masqueraded as the host port
	enterAt(t, 55, 0, 80, "10.89.0.7", beyond, beyond, node) // masqueraded as the host port, from another agent's pool
	enterAt(t, 80, 0, 22, beyond, node, node, beyond)        // to the node itself
	enterAt(t, 80, 0, 23, pod, node, node, pod)              // from a pod to the node itself
	enterAt(t, 80, 0, 24, beyond, node, other, beyond)       // by the host port, to the pod that had it before
	must(t, table.ForgetMapped(func(protocol string, at netip.AddrPort) (netip.AddrPort, bool) {
		return netip.MustParseAddrPort(pod + ":8080"), protocol == "udp" && at == netip.MustParseAddrPort("192.0.2.9:80")
	}, func(protocol string, at, to netip.AddrPort) bool {
		return protocol == "udp" && at == netip.MustParseAddrPort("192.0.2.9:81") && to.Addr() == netip.MustParseAddr(other)
	}))
	nettest.Eventually(t, "those alone to be gone", func() bool { return entries(t) == want })
}

// Named returns the addresses that entries name at any of their ends, and that the caller asks for.
func TestNamed(t *testing.T) {
	table := open(t)
	enter(t, 0, 1, "10.88.0.7", "203.0.113.5", "10.88.0.8", "192.0.2.9")
	enter(t, 0, 2, "10.88.0.7", "192.0.2.1", "192.0.2.1", "10.88.0.7")
	enter(t, 0, 3, "fd00:88::7", "2001:db8::1", "2001:db8::1", "fd00:88::7")
	enter(t, 0, 4, "10.89.0.7", "192.0.2.1", "192.0.2.1", "10.89.0.7")
	before := entries(t)
	ours := []string{"10.88.0.7", "10.88.0.8", "10.88.0.9", "fd00:88::7"}
	wantNamed(t, table, []string{"10.88.0.7", "10.88.0.8", "fd00:88::7"}, ours...)
	if now := entries(t); now != before {
		t.Errorf("the entries are now\n%s", now)
	}
}

// wantNamed checks which addresses Named returns if asked for some.
func wantNamed(t *testing.T, table *conntrack.Table, want []string, asked ...string) {
	t.Helper()
	named, err := table.Named(func(a netip.Addr) bool { return slices.Contains(asked, a.String()) })
	must(t, err)
	slices.SortFunc(named, netip.Addr.Compare)
	var got []string
	for _, a := range named {
		got = append(got, a.String())
	}
	if !slices.Equal(got, want) {
		t.Errorf("named are %v, want %v", got, want)
	}
}

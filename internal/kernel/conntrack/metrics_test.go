package conntrack_test

import (
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/nettest"
)

// The node has spoken to two machines, and TCP remembers metrics of both. A Forget of one machine's
// address, among a thousand addresses that TCP knows nothing of, deletes this machine's metrics. The
// metrics of the other machine stay.
func TestForgetMetrics(t *testing.T) {
	table := open(t)
	addrs := []string{"192.0.2.2", "192.0.2.3", "2001:db8::2", "2001:db8::3"}
	there := peers(t, addrs...)
	for _, a := range addrs {
		speak(t, there, a)
	}

	forget := []netip.Addr{netip.MustParseAddr("192.0.2.2")}
	for a := netip.MustParseAddr("10.88.0.1"); len(forget) < 1000; a = a.Next() {
		forget = append(forget, a)
	}
	must(t, table.Forget(append(forget, netip.MustParseAddr("2001:db8::2"))))
	uids, err := os.ReadFile("/proc/self/uid_map")
	must(t, err)
	if !strings.Contains(string(uids), "4294967295") {
		t.Log("the kernel lets nobody forget in a user namespace; that it does not is no error")
		return
	}
	for i, a := range addrs {
		if got, want := remembered(t, a), i%2 == 1; got != want {
			t.Errorf("TCP remembers %s: %v, want %v", a, got, want)
		}
	}
}

// Named returns the addresses that TCP has metrics of, although no entry names them and the node has no
// connection to them.
func TestNamedMetrics(t *testing.T) {
	table := open(t)
	addrs := []string{"192.0.2.2", "192.0.2.3", "2001:db8::2", "2001:db8::3"}
	there := peers(t, addrs...)
	for _, a := range addrs {
		speak(t, there, a)
	}
	must(t, netlink.ConntrackTableFlush(netlink.ConntrackTable))
	if all := entries(t); all != "" {
		t.Fatalf("connection tracking has entries:\n%s", all)
	}
	wantNamed(t, table, []string{"192.0.2.2", "2001:db8::2"}, "192.0.2.2", "192.0.2.5", "2001:db8::2")
}

// speak talks with a machine's address until TCP remembers the address. The machine ends the connection
// first: otherwise the TCP of this end would remember nothing yet.
func speak(t *testing.T, there *ns.Netns, addr string) {
	t.Helper()
	c, err := net.Dial("tcp", nettest.Serve(t, there, "tcp", net.JoinHostPort(addr, "0")).String())
	must(t, err)
	buf := make([]byte, 64)
	for err == nil {
		_, err = c.Read(buf)
	}
	c.Close()
	nettest.Eventually(t, "TCP to remember "+addr, func() bool { return remembered(t, addr) })
}

// remembered reports whether TCP has metrics of an address.
func remembered(t *testing.T, addr string) bool {
	t.Helper()
	out, err := exec.Command(nettest.Program(t, "ip"), "tcp_metrics", "show", addr).CombinedOutput()
	if err != nil && !strings.Contains(string(out), "No such process") {
		t.Fatalf("ip tcp_metrics: %v: %s", err, out)
	}
	return strings.Contains(string(out), "rtt")
}

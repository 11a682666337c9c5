package conntrack_test

import (
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-net/berth/internal/nettest"
)

// The node has spoken to two machines, and TCP remembers metrics of both. A Forget of one machine's
// address, among a thousand addresses that TCP knows nothing of, deletes this machine's metrics. The
// metrics of the other machine stay.
func TestForgetMetrics(t *testing.T) {
	table := open(t)
	there := nettest.Node(t)
	for _, command := range []string{
		"ip link add met0 type veth peer name eth0 netns " + filepath.Base(there.Ref().Path),
		"ip addr add 192.0.2.1/24 dev met0", "ip addr add 2001:db8::1/64 dev met0 nodad", "ip link set met0 up",
	} {
		nettest.Run(t, nil, command)
	}
	t.Cleanup(func() { nettest.Run(t, nil, "ip link del met0") })
	addrs := []string{"192.0.2.2", "192.0.2.3", "2001:db8::2", "2001:db8::3"}
	nettest.Run(t, there, "ip link set eth0 up")
	for _, a := range addrs {
		bits := map[bool]string{true: "/64 nodad", false: "/24"}[strings.Contains(a, ":")]
		nettest.Run(t, there, "ip addr add "+strings.Replace(bits, "/", a+"/", 1)+" dev eth0")
	}
	remembered := func(a string) bool {
		out, err := exec.Command(nettest.Program(t, "ip"), "tcp_metrics", "show", a).CombinedOutput()
		if err != nil && !strings.Contains(string(out), "No such process") {
			t.Fatalf("ip tcp_metrics: %v: %s", err, out)
		}
		return strings.Contains(string(out), "rtt")
	}
	for _, a := range addrs {
		speak(t, nettest.Serve(t, there, "tcp", net.JoinHostPort(a, "0")))
		nettest.Eventually(t, "TCP to remember "+a, func() bool { return remembered(a) })
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
		if got, want := remembered(a), i%2 == 1; got != want {
			t.Errorf("TCP remembers %s: %v, want %v", a, got, want)
		}
	}
}

// speak talks with a Serve, and lets it end the connection first. Otherwise the TCP of this end would
// remember nothing yet.
func speak(t *testing.T, to netip.AddrPort) {
	t.Helper()
	c, err := net.Dial("tcp", to.String())
	must(t, err)
	defer c.Close()
	buf := make([]byte, 64)
	for err == nil {
		_, err = c.Read(buf)
	}
}

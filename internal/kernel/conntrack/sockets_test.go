package conntrack_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/nettest"
)

// peers makes a machine that the node reaches, with some addresses.
func peers(t testing.TB, addrs ...string) (there *ns.Netns) {
	t.Helper()
	there = nettest.Node(t)
	nettest.Run(t, nil, "ip link add sock0 type veth peer name eth0 netns "+filepath.Base(there.Ref().Path))
	t.Cleanup(func() { nettest.Run(t, nil, "ip link del sock0") })
	for _, command := range []string{"ip addr add 192.0.2.1/24 dev sock0", "ip addr add 2001:db8::1/64 dev sock0 nodad", "ip link set sock0 up"} {
		nettest.Run(t, nil, command)
	}
	nettest.Run(t, there, "ip link set eth0 up")
	for _, a := range addrs {
		bits := map[bool]string{true: "/64 nodad", false: "/24"}[strings.Contains(a, ":")]
		nettest.Run(t, there, "ip addr add "+a+bits+" dev eth0")
	}
	nettest.Accept(t, there, "tcp", ":7000", func(c net.Conn) { t.Cleanup(func() { c.Close() }) })
	return there
}

// dial connects to port 7000 of an address of peers.
func dial(t testing.TB, to string) net.Conn {
	t.Helper()
	c, err := net.DialTimeout("tcp", net.JoinHostPort(to, "7000"), nettest.Deadline)
	must(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

// mapped is dial with an IPv6 socket that has an IPv4 peer.
func mapped(t testing.TB, to string) net.Conn {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	must(t, err)
	f := os.NewFile(uintptr(fd), "socket")
	defer f.Close()
	must(t, unix.Connect(fd, &unix.SockaddrInet6{Port: 7000, Addr: netip.MustParseAddr("::ffff:" + to).As16()}))
	c, err := net.FileConn(f)
	must(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

// The node has connections of each sort to some addresses. Forget ends the connections to the addresses
// that it is given, and their programs get an error. The other connections go on.
func TestForgetEndsConnections(t *testing.T) {
	table := open(t)
	peers(t, "192.0.2.2", "192.0.2.3", "2001:db8::2", "2001:db8::3")
	half := dial(t, "192.0.2.2")
	must(t, half.(*net.TCPConn).CloseWrite())
	meant := []net.Conn{dial(t, "192.0.2.2"), mapped(t, "192.0.2.2"), dial(t, "2001:db8::2"), dial(t, "192.0.2.2"), half}
	others := []net.Conn{dial(t, "192.0.2.3"), mapped(t, "192.0.2.3"), dial(t, "2001:db8::3")}
	// Two connections that wait for an answer which never comes.
	nettest.Run(t, nil, "ip neigh add 192.0.2.9 lladdr 02:00:00:00:00:99 dev sock0")
	nettest.Run(t, nil, "ip neigh add 192.0.2.10 lladdr 02:00:00:00:00:99 dev sock0")
	var waits [2]chan error
	for i, to := range []string{"192.0.2.9:7000", "192.0.2.10:7000"} {
		waits[i] = make(chan error, 1)
		ctx, cancel := context.WithCancel(t.Context())
		t.Cleanup(cancel)
		go func() {
			_, err := new(net.Dialer).DialContext(ctx, "tcp", to)
			waits[i] <- err
		}()
	}
	nettest.Eventually(t, "them to wait", func() bool {
		raw, err := os.ReadFile("/proc/thread-self/net/tcp")
		must(t, err)
		return strings.Count(string(raw), ":1B58 02") == 2 // to port 7000, SYN_SENT
	})

	ended := func(c net.Conn) bool {
		must(t, c.SetReadDeadline(time.Now().Add(10*time.Millisecond)))
		_, err := c.Read(make([]byte, 1))
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) && !errors.Is(err, syscall.ECONNABORTED) {
			t.Errorf("of a connection to %s: %v", c.RemoteAddr(), err)
		}
		return errors.Is(err, syscall.ECONNABORTED)
	}
	parse := netip.MustParseAddr
	must(t, table.Forget([]netip.Addr{parse("192.0.2.77"), parse("192.0.2.0"), parse("2001:db8::ffff")}))
	for _, c := range append(others, meant...) {
		if ended(c) {
			t.Errorf("a connection to %s is ended with others", c.RemoteAddr())
		}
	}
	must(t, table.Forget([]netip.Addr{parse("192.0.2.2"), parse("2001:db8::2"), parse("192.0.2.9"), parse("2001:db8::9"), parse("10.0.0.1")}))
	for i, c := range meant {
		if !ended(c) {
			t.Errorf("connection %d, to %s, goes on", i, c.RemoteAddr())
		}
	}
	for _, c := range others {
		if ended(c) {
			t.Errorf("a connection to %s is ended with others", c.RemoteAddr())
		}
	}
	select {
	case err := <-waits[0]:
		if !errors.Is(err, syscall.ECONNABORTED) {
			t.Errorf("what waited for an answer: %v", err)
		}
	case <-time.After(nettest.Deadline):
		t.Error("what waits for an answer goes on")
	}
	select {
	case err := <-waits[1]:
		t.Errorf("what waits for another's answer: %v", err)
	default:
	}
}

// Named returns the peers of the node's TCP connections, although no entry names them.
func TestNamedPeers(t *testing.T) {
	table := open(t)
	// No other test has these addresses, of which TCP would have metrics.
	peers(t, "192.0.2.22", "192.0.2.23", "192.0.2.24", "192.0.2.25", "2001:db8::22", "2001:db8::23")
	for _, to := range []string{"192.0.2.22", "192.0.2.22", "192.0.2.23", "2001:db8::22", "2001:db8::23"} {
		dial(t, to)
	}
	mapped(t, "192.0.2.24")
	must(t, netlink.ConntrackTableFlush(netlink.ConntrackTable))
	if all := entries(t); all != "" {
		t.Fatalf("connection tracking has entries:\n%s", all)
	}
	wantNamed(t, table, []string{"192.0.2.22", "192.0.2.24", "2001:db8::22"}, "192.0.2.22", "192.0.2.24", "192.0.2.25", "2001:db8::22")
}

// One call ends more connections than fit into one message.
func TestForgetEndsManyConnections(t *testing.T) {
	table := open(t)
	peers(t, "192.0.2.2")
	var all []net.Conn
	for range 700 {
		c, err := net.DialTimeout("tcp", "192.0.2.2:7000", nettest.Deadline)
		must(t, err)
		defer c.Close()
		all = append(all, c)
	}
	must(t, table.Forget([]netip.Addr{netip.MustParseAddr("192.0.2.2")}))
	for i, c := range all {
		if _, err := c.Write([]byte("x")); err == nil {
			t.Fatalf("connection %d goes on", i)
		}
	}
}

// BenchmarkForgetSockets measures Forget while the node has connections to other
// addresses.
func BenchmarkForgetSockets(b *testing.B) {
	for _, many := range []int{0, 1000, 8000} {
		b.Run(fmt.Sprint(many), func(b *testing.B) {
			table := open(b)
			peers(b, "192.0.2.2")
			for range many {
				c, err := net.Dial("tcp", "192.0.2.2:7000")
				must(b, err)
				defer c.Close()
			}
			runtime.GC()
			for _, who := range []string{"10.88.0.7", "192.0.2.3"} {
				b.Run(who, func(b *testing.B) {
					b.ReportAllocs()
					for b.Loop() {
						must(b, table.EndSockets([]netip.Addr{netip.MustParseAddr(who), netip.MustParseAddr("fd00:88::7")}))
					}
				})
			}
			b.Run("Named", func(b *testing.B) {
				for b.Loop() {
					_, err := table.Named(func(netip.Addr) bool { return false })
					must(b, err)
				}
			})
		})
	}
}

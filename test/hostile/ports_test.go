package hostile

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/nettest"
)

// dialFrom talks, by TCP or UDP from a chosen port, to a server that nettest.Serve has started. It
// returns why no answer came.
func dialFrom(at *ns.Netns, network string, to netip.AddrPort, port int) error {
	f := func() error {
		d := net.Dialer{Timeout: 2 * time.Second, Control: func(_, _ string, c syscall.RawConn) error {
			return c.Control(func(fd uintptr) { unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1) })
		}}
		if network[:3] == "udp" {
			d.LocalAddr = &net.UDPAddr{Port: port}
		} else {
			d.LocalAddr = &net.TCPAddr{Port: port}
		}
		c, err := d.Dial(network, to.String())
		if err != nil {
			return err
		}
		defer c.Close()
		for end := time.Now().Add(2 * time.Second); ; {
			_ = c.SetDeadline(time.Now().Add(200 * time.Millisecond))
			if _, err := c.Write([]byte("?")); err != nil {
				return err
			}
			_, err := c.Read(make([]byte, 64))
			if err == nil || time.Now().After(end) {
				return err
			} // what others sent may have left no room for this packet in the server's queue
		}
	}
	if at == nil {
		return f()
	}
	return at.Do(f)
}

// A pod opens connections from ports below 1024 to one destination, such as an NFS
// server: 424 are all that the node's address has between 600 and 1023, and masquerade
// used to keep what comes from such a port among these ports (nf_nat_l4proto_unique_tuple).
// Another pod, and the node itself, whose NFS client takes such a port, reach the destination, too.
func TestLowPortsOfOnePodAreLimited(t *testing.T) {
	for _, network := range []string{"udp4", "tcp4"} {
		t.Run(network, func(t *testing.T) {
			n := newNode(t, plain)
			a, b := n.add("a"), n.add("b")
			w := a.wire(t)
			a.mute(t)
			const port = 2049
			echo := nettest.Serve(t, n.lan, network, netip.AddrPortFrom(lan4, port).String())
			nettest.Sysctl(t, n.lan, "ipv4/tcp_syncookies", "2") // nobody completes what the pod begins
			for _, who := range []*ns.Netns{b.at, nil} {
				if err := dialFrom(who, network, echo, 700); err != nil {
					t.Fatalf("before: %v", err)
				}
			}
			forget(t)
			for range 3 { // some are chosen twice
				for from := uint16(512); from < 1024; from++ {
					if network == "udp4" {
						w.send(ether(a.mac, w.mac, udpPacket(a.ip4, lan4, from, port, "")))
					} else {
						w.send(ether(a.mac, w.mac, tcpPacket(a.ip4, lan4, from, port, syn, 1, 0)))
					}
				}
			}
			nettest.Eventually(t, "the pod's connections to be there", func() bool { return tracked(t) >= 400 })
			for who, from := range map[string]*ns.Netns{"another pod": b.at, "the node": nil} {
				failed := 0
				for try := range 3 {
					if err := dialFrom(from, network, echo, 701+try); err != nil {
						failed++
						t.Logf("%s from port %d: %v", who, 701+try, err)
					}
				}
				if failed > 0 {
					t.Errorf("%s does not reach %s from a port below 1024 in %d of 3 tries", who, echo, failed)
				}
			}
			forget(t)
		})
	}
}

// A pod opens flows to one destination, to get, towards this destination, the port of a service of the
// node. The configuration leaves that port out of masquerade's range, and the pod gets no port outside
// the range.
func TestPortsThatAreLeftOut(t *testing.T) {
	const first, last, many = 20000, 51819, 500 // WireGuard has the next port
	n := newNode(t, fmt.Sprintf("connections: 15000\nmasquerade: {ports: %d-%d}\n", first, last)+plain)
	a := n.add("a")
	w, heard := a.wire(t), listen(t, n.lan)
	for _, as := range []struct{ own, to, node netip.Addr }{{a.ip4, lan4, node4}, {a.ip6, lan6, node6}} {
		for _, proto := range []byte{udp, tcp} {
			for i := range uint16(many) {
				if from := 51820 + i; proto == udp { // masquerade would keep these, if it could
					w.send(ether(a.mac, w.mac, udpPacket(as.own, as.to, from, 51820, "hello")))
				} else {
					w.send(ether(a.mac, w.mac, tcpPacket(as.own, as.to, from, 51820, syn, 1, 0)))
				}
			}
		}
		nettest.Eventually(t, "the pod's last packet", func() bool {
			w.send(ether(a.mac, w.mac, packet(as.own, as.to, marker, make([]byte, 8))))
			return heard.count(func(s seen) bool { return s == seen{as.node, as.to, marker} }) > 0
		})
		flows := nettest.List(t, func() ([]*netlink.ConntrackFlow, error) {
			return netlink.ConntrackTableList(netlink.ConntrackTable, family(as.own))
		})
		tracked := 0
		for _, f := range flows {
			if p := f.Reverse.DstPort; f.Forward.DstPort == 51820 {
				if tracked++; p < first || p > last {
					t.Errorf("a pod gets port %d", p)
				}
			}
		}
		if tracked < many {
			t.Errorf("%d flows are tracked, want %d of each protocol", tracked, many)
		}
	}
}

// A pod opens TCP connections to one destination and resets them, and sends a packet for each
// every few seconds, so that the kernel never forgets them. No share counts these connections, and
// connection tracking has room for four times as many, but each has a port of the node's address. The
// agent deletes these entries before another pod or the node finds no free port.
func TestClosedConnectionsTakeNotAllPorts(t *testing.T) {
	n := newNode(t, plain)
	a, b := n.add("a"), n.add("b")
	w := a.wire(t)
	const port = 6443
	echo := nettest.Serve(t, n.lan, "tcp4", netip.AddrPortFrom(lan4, port).String())
	nettest.Sysctl(t, n.lan, "ipv4/tcp_syncookies", "2")
	for who, from := range map[string]*ns.Netns{"another pod": b.at, "the node": nil} {
		if _, err := nettest.Talk(from, "tcp4", echo, 2*time.Second); err != nil {
			t.Fatalf("%s before: %v", who, err)
		}
	}
	// The pod's kernel resets what it did not open: SYN by hand, SYN|ACK, RST.
	ear := openWire(t, a.at, true)
	_ = unix.SetsockoptInt(ear.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20)
	patience := unix.Timeval{Usec: 20_000}
	_ = unix.SetsockoptTimeval(ear.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &patience)
	t.Cleanup(func() { unix.Close(ear.fd) })
	var answered [1 << 16]atomic.Uint64 // by port: what came with SYN|ACK
	done, ended := make(chan struct{}), make(chan struct{}, 2)
	stop := func() { close(done); <-ended; <-ended; forget(t) }
	go func() {
		defer func() { ended <- struct{}{} }()
		buf := make([]byte, 256)
		for {
			select {
			case <-done:
				return
			default:
			}
			n, _, err := unix.Recvfrom(ear.fd, buf, 0)
			if err != nil || n < 54 || buf[23] != tcp || buf[47] != syn|ack {
				continue
			}
			to, isn := binary.BigEndian.Uint16(buf[36:]), binary.BigEndian.Uint32(buf[38:])
			answered[to].Store(1<<32 | uint64(isn))
		}
	}()
	go func() {
		defer func() { ended <- struct{}{} }()
		for {
			for from := 1024; from < 1<<16; from++ {
				if from%64 == 0 {
					select {
					case <-done:
						return
					case <-time.After(2 * time.Millisecond):
					}
				}
				if was := answered[from].Load(); was != 0 {
					w.send(ether(a.mac, w.mac, tcpPacket(a.ip4, lan4, uint16(from), port, ack, 2, uint32(was)+1)))
				} else {
					w.send(ether(a.mac, w.mac, tcpPacket(a.ip4, lan4, uint16(from), port, syn, 1, 0)))
				}
			}
		}
	}()
	defer stop()
	for most, end := 0, time.Now().Add(2*time.Minute); ; time.Sleep(time.Second) {
		now := tracked(t)
		if most = max(most, now); most > 45000 && now < most-10000 {
			break // the agent has seen the entries
		}
		if time.Now().After(end) {
			t.Fatalf("%d connections are tracked, and nobody trims them", now)
		}
		if now < 40000 {
			continue
		}
		for who, from := range map[string]*ns.Netns{"another pod": b.at, "the node": nil} {
			if _, err := nettest.Talk(from, "tcp4", echo, 2*time.Second); err != nil {
				t.Fatalf("%s does not reach %s, with %d connections tracked: %v", who, echo, now, err)
			}
		}
	}
}

package hostile

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/echo"
	"github.com/berth-net/berth/internal/nettest"
)

// lastHop has an IPv4 frame die at the node: its TTL is 1.
func lastHop(frame []byte) []byte {
	frame[22] = 1
	binary.BigEndian.PutUint16(frame[24:], 0)
	binary.BigEndian.PutUint16(frame[24:], echo.Checksum(frame[14:34]))
	return frame
}

// served starts a TCP server in a pod, which keeps the connections that others open to it.
func served(t *testing.T, p *pod) (at netip.AddrPort, conns chan net.Conn) {
	t.Helper()
	conns = make(chan net.Conn, 100_000)
	l := nettest.Accept(t, p.at, "tcp4", netip.AddrPortFrom(p.ip4, 0).String(), func(c net.Conn) { conns <- c })
	return netip.MustParseAddrPort(l.String()), conns
}

// few is a share so small that each connection counts. Of a larger share only a sample counts,
// so that a pod may have used up 1,024 connections after opening 896 (in one run of 120).
const few = 500

// oneTry is how long a connection may take that is not refused: a SYN that is dropped is sent
// again after a second.
const oneTry = 900 * time.Millisecond

// A pod opens connections to another, resets them as far as the node can see, by segments that
// die at the node, and waits until the node has forgotten them. The other pod's next packets
// begin the connections anew. They do not count for the other pod, which can still open its
// share.
func TestOthersConnectionsAreNotOnesOwn(t *testing.T) {
	n := newNode(t, fmt.Sprintf("connections: %d\n", few)+plain)
	a, b := n.add("a"), n.add("b")
	echo := nettest.Serve(t, n.lan, "udp4", "192.0.2.2:0")
	to, accepted := served(t, b)
	w := a.wire(t)
	frames := make(chan []byte, 100_000)
	rawTap(t, openWire(t, a.at, true), frames)
	const many = few * 7 / 8
	mine := connect(t, a, to.String(), many)
	defer func() {
		for _, c := range mine {
			c.Close()
		}
	}()
	talk := func() error { _, err := nettest.Talk(b.at, "udp4", echo, time.Second); return err }
	if err := talk(); err != nil {
		t.Fatalf("before: %v", err)
	}
	nettest.Eventually(t, "all to be accepted", func() bool { return len(accepted) == many })
	for resets := 0; resets < many; {
		var f []byte
		select {
		case f = <-frames:
		case <-time.After(10 * time.Second):
			t.Fatalf("%d answers are heard, of %d", resets, many)
		}
		if len(f) < 54 || f[23] != tcp || f[47] != syn|ack || f[12] != 8 {
			continue
		}
		from, to := binary.BigEndian.Uint16(f[34:]), binary.BigEndian.Uint16(f[36:])
		seq, acked := binary.BigEndian.Uint32(f[38:]), binary.BigEndian.Uint32(f[42:])
		w.send(lastHop(ether(a.mac, w.mac, tcpPacket(a.ip4, b.ip4, to, from, rst|ack, acked, seq+1))))
		resets++
	}
	nettest.Eventually(t, "the node to forget them", func() bool {
		nettest.Run(t, nil, "conntrack -L") // for this list the kernel looks what is over; by itself it may take a minute
		return tracked(t) < 100
	})
	if err := talk(); err != nil {
		t.Fatalf("before: %v", err)
	}
	for range many { // what any server does that has news for its clients
		c := <-accepted
		defer c.Close()
		if _, err := c.Write([]byte("news")); err != nil {
			t.Errorf("the server: %v", err)
		}
	}
	b.openOwn(t, nettest.Serve(t, n.lan, "tcp4", "192.0.2.2:0"))
}

// openOwn has a pod that has opened nothing until now open 200 TCP connections, few against its share, and
// keep them open until the test ends.
func (p *pod) openOwn(t *testing.T, to netip.AddrPort) {
	t.Helper()
	failed := 0
	for i := 0; i < 200 && failed <= 20; i++ {
		if err := p.at.Do(func() error {
			c, err := net.DialTimeout("tcp4", to.String(), oneTry)
			if err == nil {
				t.Cleanup(func() { c.Close() })
			}
			return err
		}); err != nil {
			failed++
			if failed == 1 {
				t.Logf("after %d: %v", i, err)
			}
		}
	}
	if failed > 0 {
		t.Errorf("a pod that has opened nothing opens %d connections of 200 in vain", failed)
	}
}

// A pod begins SCTP associations with another, aborts them as far as the node can see, by packets that
// die at the node, and waits until the node has forgotten them. The other pod's next heartbeats begin the
// associations anew. They do not count for the other pod, which can still open its share.
func TestOthersAssociationsAreNotOnesOwn(t *testing.T) {
	const initAck, heartbeat, abort, cookieEcho, cookieAck = 2, 4, 6, 10, 11
	n := newNode(t, fmt.Sprintf("connections: %d\n", few)+plain)
	a, b := n.add("a"), n.add("b")
	from, to := a.wire(t), b.wire(t)
	const many, server = few * 7 / 8, 7000
	ask := func(i uint16, tag uint32, kind byte) []byte {
		return ether(a.mac, from.mac, packet(a.ip4, b.ip4, unix.IPPROTO_SCTP, sctpChunk(10_000+i, server, tag, kind)))
	}
	answer := func(i uint16, kind byte) []byte {
		return ether(b.mac, to.mac, packet(b.ip4, a.ip4, unix.IPPROTO_SCTP, sctpChunk(server, 10_000+i, initTag, kind)))
	}
	inState := func(state string) int { // how many associations the node sees in the state
		out, err := exec.Command("conntrack", "-L", "-p", "sctp").Output()
		must(t, err)
		return strings.Count(string(out), state+" src=")
	}
	// all sends a packet for each association, until the node sees all associations in the state.
	all := func(state string, send func(i uint16)) {
		t.Helper()
		nettest.Eventually(t, "all to be "+state, func() bool {
			for i := range uint16(many) {
				send(i)
			}
			return inState(state) == many
		})
	}
	all("CLOSED", func(i uint16) { from.send(ask(i, 0, initChunk)) })
	all("COOKIE_WAIT", func(i uint16) { to.send(answer(i, initAck)) })
	all("COOKIE_ECHOED", func(i uint16) { from.send(ask(i, initTag, cookieEcho)) })
	all("ESTABLISHED", func(i uint16) { to.send(answer(i, cookieAck)) })
	nettest.Sysctl(t, nil, "netfilter/nf_conntrack_sctp_timeout_closed", "1")
	all("CLOSED", func(i uint16) { from.send(lastHop(ask(i, initTag, abort))) })
	nettest.Eventually(t, "the node to forget them", func() bool { return inState("") == 0 })
	for i := range uint16(many) { // what any server does whose clients are silent
		to.send(answer(i, heartbeat))
	}
	b.openOwn(t, nettest.Serve(t, n.lan, "tcp4", "192.0.2.2:0"))
}

// A pod has opened connections to another, which has something to say when the pod is deleted.
// The packets that the other pod sends in vain cost it none of its share.
func TestDeadClientsCostNoShare(t *testing.T) {
	n := newNode(t, fmt.Sprintf("connections: %d\n", few)+plain)
	a, b := n.add("a"), n.add("b")
	echo := nettest.Serve(t, n.lan, "tcp4", "192.0.2.2:0")
	to, accepted := served(t, b)
	const many = few * 7 / 8
	connect(t, a, to.String(), many)
	nettest.Eventually(t, "all to be accepted", func() bool { return len(accepted) == many })
	for range 3 {
		if _, err := nettest.Talk(b.at, "tcp4", echo, time.Second); err != nil {
			t.Fatalf("before: %v", err)
		}
	}
	n.del(a, wait)
	for range many {
		c := <-accepted
		defer c.Close()
		_, _ = c.Write([]byte("news"))
	}
	for begun := time.Now(); time.Since(begun) < 10*time.Second; time.Sleep(100 * time.Millisecond) {
		if _, err := nettest.Talk(b.at, "tcp4", echo, oneTry); err != nil {
			t.Fatalf("the other opens no connection %s after the DEL: %v", time.Since(begun), err)
		}
	}
}

// rawTap notes whole frames that come to an eth0.
func rawTap(t *testing.T, w *wire, frames chan<- []byte) {
	patience := unix.Timeval{Usec: 20_000}
	must(t, unix.SetsockoptTimeval(w.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &patience))
	buf := make([]byte, 4096)
	t.Cleanup(func() { unix.Close(w.fd) })
	nettest.Meanwhile(t, func() {
		if n, _, err := unix.Recvfrom(w.fd, buf, 0); err == nil {
			select {
			case frames <- slices.Clone(buf[:n]):
			default:
			}
		}
	})
}

// connect opens a number of TCP connections of a pod, which stay open until the test ends.
func connect(t *testing.T, p *pod, to string, many int) (conns []net.Conn) {
	t.Helper()
	t.Cleanup(func() {
		for _, c := range conns {
			c.Close()
		}
	})
	for range many {
		if err := p.at.Do(func() error {
			c, err := net.DialTimeout("tcp4", to, 2*time.Second)
			if err == nil {
				conns = append(conns, c)
			}
			return err
		}); err != nil {
			t.Fatalf("after %d: %v", len(conns), err)
		}
	}
	return conns
}

package nettest

import (
	"net"
	"testing"

	"github.com/berth-net/berth/internal/kernel/ns"
)

// Hear calls heard with each packet that comes to an address in a namespace (nil: the process's own),
// until the test ends. It returns the socket, by which heard can answer.
func Hear(t testing.TB, at *ns.Netns, network, address string, heard func(conn net.PacketConn, packet []byte, from net.Addr)) (conn net.PacketConn) {
	t.Helper()
	Must(t, DoIn(at, func() (err error) { conn, err = net.ListenPacket(network, address); return err }))
	t.Cleanup(func() { conn.Close() })
	go func() {
		buf := make([]byte, 1<<16)
		for {
			n, from, err := conn.ReadFrom(buf)
			if err != nil {
				return
			}
			heard(conn, buf[:n], from)
		}
	}()
	return conn
}

// Accept calls accepted with each connection to an address in a namespace (nil: the process's own),
// until the test ends. It returns the address that it listens at.
func Accept(t testing.TB, at *ns.Netns, network, address string, accepted func(net.Conn)) net.Addr {
	t.Helper()
	var l net.Listener
	Must(t, DoIn(at, func() (err error) { l, err = net.Listen(network, address); return err }))
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			accepted(conn)
		}
	}()
	return l.Addr()
}

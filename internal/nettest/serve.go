package nettest

import (
	"bufio"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/berth-net/berth/internal/kernel/ns"
)

// Serve listens on a port in a namespace (nil: the process's own), and answers each client
// with the address that it sees the client at: see Talk. network is tcp or udp, with 4 or 6
// if need be; the port in address may be 0. Serve returns the address and port that it
// listens on, and serves until the test ends.
func Serve(t testing.TB, at *ns.Netns, network, address string) netip.AddrPort {
	t.Helper()
	Need(t)
	var serving net.Addr
	if network[:3] == "udp" {
		serving = Hear(t, at, network, address, func(conn net.PacketConn, _ []byte, from net.Addr) {
			conn.WriteTo([]byte(from.String()+"\n"), from)
		}).LocalAddr()
	} else {
		serving = Accept(t, at, network, address, func(conn net.Conn) {
			fmt.Fprintln(conn, conn.RemoteAddr())
			conn.Close()
		})
	}
	return netip.MustParseAddrPort(serving.String())
}

// Talk asks a server that Serve has started, from a namespace (nil: the process's own), at which
// address the server sees the caller, and gives up after wait. If a node masquerades the caller, the
// server sees the node's address.
func Talk(from *ns.Netns, network string, to netip.AddrPort, wait time.Duration) (seen netip.AddrPort, err error) {
	err = DoIn(from, func() error {
		conn, err := net.DialTimeout(network, to.String(), wait)
		if err != nil {
			return err
		}
		defer conn.Close()
		if err := conn.SetDeadline(time.Now().Add(wait)); err != nil {
			return err
		}
		if network[:3] == "udp" {
			if _, err := conn.Write([]byte("?")); err != nil {
				return err
			}
		}
		line, err := bufio.NewReader(conn).ReadString('\n')
		if err != nil {
			return err
		}
		seen, err = netip.ParseAddrPort(line[:len(line)-1])
		seen = netip.AddrPortFrom(seen.Addr().Unmap(), seen.Port())
		return err
	})
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("talking to %s %s from %s: %w", network, to, where(from), err)
	}
	return seen, nil
}

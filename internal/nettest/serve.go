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
	err := DoIn(at, func() error {
		if network[:3] == "udp" {
			conn, err := net.ListenPacket(network, address)
			if err != nil {
				return err
			}
			t.Cleanup(func() { conn.Close() })
			go answerPackets(conn)
			serving = conn.LocalAddr()
			return nil
		}
		listener, err := net.Listen(network, address)
		if err != nil {
			return err
		}
		t.Cleanup(func() { listener.Close() })
		go answerConns(listener)
		serving = listener.Addr()
		return nil
	})
	if err != nil {
		t.Fatalf("nettest: serving in %s: %v", where(at), err)
	}
	return netip.MustParseAddrPort(serving.String())
}

func answerPackets(conn net.PacketConn) {
	buf := make([]byte, 16)
	for {
		_, from, err := conn.ReadFrom(buf)
		if err != nil {
			return
		}
		conn.WriteTo([]byte(from.String()+"\n"), from)
	}
}

func answerConns(listener net.Listener) {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		fmt.Fprintln(conn, conn.RemoteAddr())
		conn.Close()
	}
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

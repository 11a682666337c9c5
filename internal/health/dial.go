package health

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// errSilent says that nobody has answered in time.
var errSilent = fmt.Errorf("no answer within %s", answering)

// hello asks the responder at an address, from a place or, if p is nil, from the node's own network namespace. It fails unless
// the responder answers in the name of the node that is wanted there. (net/http's Transport goes on to dial when the
// request's time is up.)
func (h *Health) hello(ctx context.Context, p *place, a netip.Addr, node string) error {
	ctx, cancel := context.WithTimeout(ctx, answering)
	defer cancel()
	at := netip.AddrPortFrom(a, uint16(h.Port))
	conn, err := p.reach(ctx, at)
	if err != nil {
		return silent(err)
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+at.String()+pathHello, nil)
	if err != nil {
		return err
	}
	req.Close = true
	if err := req.Write(conn); err != nil {
		return cut(ctx, err)
	}
	res, err := http.ReadResponse(bufio.NewReader(io.LimitReader(conn, maxAnswer)), req)
	if err != nil {
		return cut(ctx, err)
	}
	defer res.Body.Close()
	said, err := io.ReadAll(res.Body)
	if err != nil {
		return cut(ctx, err)
	}
	if name := strings.TrimSpace(string(said)); res.StatusCode != http.StatusOK || name != node {
		return fmt.Errorf("somebody else answers there: %s, %.80q", res.Status, name)
	}
	return nil
}

// maxAnswer is how many bytes an answer has at most.
const maxAnswer = 4 << 10

// reach connects to a responder, from a place or, if p is nil, from the node's own network namespace.
func (p *place) reach(ctx context.Context, at netip.AddrPort) (net.Conn, error) {
	if p == nil {
		return (&net.Dialer{}).DialContext(ctx, "tcp", at.String())
	}
	return p.dial(ctx, unix.SOCK_STREAM, 0, at)
}

// silent returns errSilent for an error that says that the time was up.
func silent(err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.DeadlineExceeded) {
		return errSilent
	}
	return err
}

// cut returns the error of a connection that may have been closed because its time was up.
func cut(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return silent(ctx.Err())
	}
	return err
}

// ICMP types (RFC 792; RFC 4443).
const (
	echoRequest4, echoReply4 = 8, 0
	echoRequest6, echoReply6 = 128, 129
)

// headerLen is the length of an ICMP echo's header, in bytes: type, code, checksum, identifier, sequence number.
const headerLen = 8

// ping sends an ICMP echo from a place, by a socket for which one needs no CAP_NET_RAW: the kernel fills in checksum and
// identifier.
//
//	ping -c 1 ADDRESS
func (p *place) ping(ctx context.Context, a netip.Addr) error {
	ctx, cancel := context.WithTimeout(ctx, answering)
	defer cancel()
	proto, request, reply := unix.IPPROTO_ICMPV6, byte(echoRequest6), byte(echoReply6)
	if a.Is4() {
		proto, request, reply = unix.IPPROTO_ICMP, echoRequest4, echoReply4
	}
	conn, err := p.dial(ctx, unix.SOCK_DGRAM, proto, netip.AddrPortFrom(a, 0))
	if err != nil {
		return err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	message := make([]byte, headerLen+16)
	message[0] = request
	rand.Read(message[headerLen:])
	if _, err := conn.Write(message); err != nil {
		return err
	}
	buf := make([]byte, 512)
	for {
		n, err := conn.Read(buf)
		if err != nil {
			return cut(ctx, err)
		}
		if got := buf[:n]; n == len(message) && got[0] == reply && bytes.Equal(got[headerLen:], message[headerLen:]) {
			return nil
		}
	}
}

// dial connects a socket of a place.
func (p *place) dial(ctx context.Context, typ, proto int, to netip.AddrPort) (net.Conn, error) {
	family, sa := unix.AF_INET6, unix.Sockaddr(&unix.SockaddrInet6{Port: int(to.Port()), Addr: to.Addr().As16()})
	level, option := unix.IPPROTO_IPV6, unix.IPV6_RECVERR
	if to.Addr().Is4() {
		family, sa = unix.AF_INET, &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}
		level, option = unix.IPPROTO_IP, unix.IP_RECVERR
	}
	f, err := p.socket(family, typ, proto)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := connect(ctx, f, sa, level, option); err != nil {
		return nil, &net.OpError{Op: "dial", Net: "ip", Addr: net.TCPAddrFromAddrPort(to), Err: err}
	}
	return net.FileConn(f) // a copy
}

// connect connects a socket. option has the kernel tell the socket the ICMP errors that others send.
func connect(ctx context.Context, f *os.File, to unix.Sockaddr, level, option int) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { _ = f.SetDeadline(time.Unix(1, 0)) })() // fails if f is closed
	begun := false
	var failed error
	err = raw.Write(func(fd uintptr) (done bool) {
		if !begun {
			begun = true
			if failed = unix.SetsockoptInt(int(fd), level, option, 1); failed == nil {
				failed = unix.Connect(int(fd), to)
			}
			return !errors.Is(failed, unix.EINPROGRESS)
		}
		why, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ERROR)
		if failed = err; err == nil && why != 0 {
			failed = unix.Errno(why)
		}
		if failed != nil {
			return true
		}
		_, err = unix.Getpeername(int(fd))
		return err == nil // else the socket was writable before the connection began, and is not connected yet
	})
	if err != nil {
		return silent(err)
	}
	return failed
}

package server

import (
	"context"
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// These bound how much of an answer the kernel keeps, and for how long, if a client of the metrics
// does not take it in. A closed connection, too, keeps unsent bytes, and nobody counts that
// connection any more.
const (
	sendBuffer  = 16 << 10         // bytes; the kernel doubles them, and a last packet may go beyond
	unsentLimit = 10 * time.Second // a client that takes in nothing for so long is given up
)

// listenTCP listens at an address for connections that keep little in the kernel. Connections
// have these options from the listening socket.
func listenTCP(addr string) (net.Listener, error) {
	config := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var err error
		if control := c.Control(func(fd uintptr) {
			err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_SNDBUF, sendBuffer)
			if err == nil {
				err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(unsentLimit.Milliseconds()))
			}
		}); control != nil {
			return control
		}
		return err
	}}
	config.SetMultipathTCP(false) // these options are plain TCP's
	l, err := config.Listen(context.Background(), "tcp", addr)
	if err != nil {
		return nil, err
	}
	return boundListener{l.(*net.TCPListener)}, nil
}

type boundListener struct{ *net.TCPListener }

func (l boundListener) Accept() (net.Conn, error) {
	conn, err := l.AcceptTCP()
	if err != nil {
		return nil, err
	}
	return &boundConn{conn}, nil
}

// boundConn is a connection whose Close leaves nothing unsent in the kernel, if a Write has failed
// before.
type boundConn struct{ *net.TCPConn }

func (c *boundConn) Write(b []byte) (int, error) {
	n, err := c.TCPConn.Write(b)
	if err != nil {
		_ = c.SetLinger(0) // it fails for a connection that is closed already
	}
	return n, err
}

// abort closes a connection, and has the kernel forget at once what is unsent on it: the client
// gets a reset.
func abort(conn net.Conn) {
	if c, ok := conn.(*boundConn); ok {
		_ = c.SetLinger(0) // it fails for a connection that is closed already
	}
	_ = conn.Close()
}

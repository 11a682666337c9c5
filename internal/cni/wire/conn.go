// Package wire asks the agent as the plugin does: one HTTP/1.1 request over a raw unix
// socket. It implements a small, strict part of HTTP, since net and net/http would double
// the plugin's size and take longer to start than the plugin runs.
package wire

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/boottime"
	"github.com/berth-net/berth/internal/root"
)

// ErrDeadline says that the other side took too long.
var ErrDeadline = errors.New("the deadline passed")

// maxSocketPath is how long a socket's path may be, in bytes (unix(7): 108
// with its NUL).
const maxSocketPath = 107

// conn is a connection to the agent. No operation on it blocks beyond deadline
// (CLOCK_BOOTTIME in nanoseconds).
type conn struct {
	fd       int
	deadline int64
}

// dial connects to the agent of a root directory.
func dial(dir root.Dir, deadline int64) (*conn, error) {
	path, closePath, err := socketPath(dir)
	if err != nil {
		return nil, err
	}
	defer closePath()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	c := &conn{fd, deadline}
	for {
		// If the listener's backlog is full, connect waits, for as long as a send may take (SO_SNDTIMEO).
		if err = c.limitSending(); err != nil {
			break
		}
		if err = unix.Connect(fd, &unix.SockaddrUnix{Name: path}); err != unix.EINTR {
			break
		}
	}
	if err == nil {
		return c, nil
	}
	c.close()
	if err == unix.EAGAIN {
		err = ErrDeadline
	}
	return nil, fmt.Errorf("connecting to %s: %w", dir.Socket(), err)
}

// socketPath returns a path to the agent's socket that fits into a socket address. Instead of a
// long path, socketPath returns a path by way of the directory's file descriptor. closePath closes
// the descriptor.
func socketPath(dir root.Dir) (path string, closePath func(), err error) {
	if path := dir.Socket(); len(path) <= maxSocketPath {
		return path, func() {}, nil
	}
	fd, err := unix.Open(dir.Run(), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", nil, fmt.Errorf("opening %s: %w", dir.Run(), err)
	}
	return filepath.Join("/proc/self/fd", strconv.Itoa(fd), root.SocketName), func() { unix.Close(fd) }, nil
}

func (c *conn) close() { unix.Close(c.fd) }

// left returns how long it is until the deadline.
func (c *conn) left() (time.Duration, error) {
	left := time.Duration(c.deadline - boottime.Now())
	if left <= 0 {
		return 0, ErrDeadline
	}
	return left, nil
}

// limitSending makes the next connect or send end at the deadline.
func (c *conn) limitSending() error {
	left, err := c.left()
	if err != nil {
		return err
	}
	tv := unix.NsecToTimeval(max(left, time.Microsecond).Nanoseconds()) // 0 would be for ever
	if err := unix.SetsockoptTimeval(c.fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &tv); err != nil {
		return os.NewSyscallError("setsockopt", err)
	}
	return nil
}

// Write sends all of p.
func (c *conn) Write(p []byte) (int, error) {
	sent := 0
	for sent < len(p) {
		if err := c.limitSending(); err != nil {
			return sent, err
		}
		n, err := unix.SendmsgN(c.fd, p[sent:], nil, nil, unix.MSG_NOSIGNAL)
		switch err {
		case nil:
			sent += n
		case unix.EINTR:
		case unix.EAGAIN:
			return sent, ErrDeadline
		default:
			return sent, os.NewSyscallError("send", err)
		}
	}
	return sent, nil
}

// Read receives some bytes; io.EOF means that the agent has closed the connection.
func (c *conn) Read(p []byte) (int, error) {
	return ReadBefore(c.fd, p, c.deadline)
}

// ReadBefore reads from a blocking file descriptor as read(2) does, but ends
// with ErrDeadline at a deadline (CLOCK_BOOTTIME in nanoseconds). The end of a
// file is io.EOF.
func ReadBefore(fd int, p []byte, deadline int64) (int, error) {
	for {
		left := time.Duration(deadline - boottime.Now())
		if left <= 0 {
			return 0, ErrDeadline
		}
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(fds, int((left+time.Millisecond-1)/time.Millisecond))
		switch {
		case err == unix.EINTR || err == nil && n == 0:
			continue
		case err != nil:
			return 0, os.NewSyscallError("poll", err)
		}
		n, err = unix.Read(fd, p)
		switch {
		case err == unix.EINTR || err == unix.EAGAIN: // EAGAIN: the descriptor may be non-blocking all the same
			continue
		case err != nil:
			return 0, os.NewSyscallError("read", err)
		case n == 0 && len(p) > 0:
			return 0, io.EOF
		}
		return n, nil
	}
}

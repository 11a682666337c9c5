package client

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// ErrAway says that no agent answered: there is no socket, nobody listens on
// it, or the connection broke before the answer. In the last case the request
// may have been executed.
var ErrAway = errors.New("no agent answers")

// maxPath is how long a socket's path may be: sun_path without its NUL
// (unix(7)).
const maxPath = 107

// Dial connects to an agent's socket, however long the socket's path is. If nobody listens on
// the socket or accepts there, Dial fails with ErrAway.
func Dial(ctx context.Context, socket string) (net.Conn, error) {
	path, done, err := Reachable(socket)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %w", ErrAway, err)
	}
	if err != nil {
		return nil, err
	}
	defer done()
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", path)
	if err == nil {
		return conn, nil
	}
	err = fmt.Errorf("connecting to %s: %w", socket, errors.Unwrap(err))
	// ECONNREFUSED: the socket's agent is gone; EAGAIN: the socket's agent accepts nobody.
	for _, away := range []error{unix.ENOENT, unix.ECONNREFUSED, unix.EAGAIN} {
		if errors.Is(err, away) {
			return nil, fmt.Errorf("%w: %w", ErrAway, err)
		}
	}
	return nil, err
}

// Listener returns the process that listens on an agent's socket, by its id in the caller's pid
// namespace; 0 if the process cannot be seen from there. Listener needs no answer of the agent.
func Listener(ctx context.Context, socket string) (pid int, err error) {
	conn, err := Dial(ctx, socket)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	raw, err := conn.(*net.UnixConn).SyscallConn() // Dial makes no other kind of connection
	if err != nil {
		return 0, err
	}
	var peer *unix.Ucred
	var asked error
	err = raw.Control(func(fd uintptr) { peer, asked = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if err = errors.Join(err, asked); err != nil {
		return 0, fmt.Errorf("asking who listens on %s: %w", socket, err)
	}
	return int(peer.Pid), nil
}

// Reachable returns a path to a socket that is short enough for the kernel. Instead of a long
// path, Reachable returns a path by way of the directory's file descriptor. done closes the descriptor.
func Reachable(socket string) (path string, done func(), _ error) {
	if len(socket) <= maxPath {
		return socket, func() {}, nil
	}
	dir, name := filepath.Split(socket)
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", nil, &fs.PathError{Op: "open", Path: dir, Err: err}
	}
	return filepath.Join("/proc/self/fd", strconv.Itoa(fd), name), func() { _ = unix.Close(fd) }, nil
}

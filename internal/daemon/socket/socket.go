// Package socket makes a daemon's unix socket: only root and the daemon's own user can connect. It
// takes the place of a socket that a dead daemon has left, and never that of a daemon that lives.
package socket

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/api/client"
	"github.com/berth-net/berth/internal/root"
)

// ErrServed says that a daemon answers at a root already.
var ErrServed = errors.New("another agent serves this root")

// errInWay says that something is in the socket's place that is no daemon's socket, and that Listen
// leaves alone: a folder or a file that is not empty, another program's socket, or what cannot be
// removed.
var errInWay = errors.New("something else is in the place of the agent's socket")

// Socket is a daemon's unix socket. Only root and the daemon's own user can connect: the
// modes of the directory and of the socket keep others out, and Accept checks each peer's
// credentials.
type Socket struct {
	*net.UnixListener
	path string
	file os.FileInfo // identifies the socket's file
	log  *slog.Logger
}

// Unserved returns ErrServed if a daemon listens at a path, whether it answers or not, and
// else nil.
func Unserved(path string) error {
	if err := checkStale(path); errors.Is(err, ErrServed) {
		return err
	}
	return nil
}

// Listen makes the socket of this name in dir's run folder, and makes the folder, too. It does not
// replace a live daemon's socket. It replaces a socket that a dead daemon left, and empty things that are
// no socket: a container runtime makes a folder at the path of a bind mount whose source is not there
// yet. If two daemons start at once, a lock of theirs decides between them, not Listen.
func Listen(dir root.Dir, name string, log *slog.Logger) (*Socket, error) {
	if err := makeRun(dir); err != nil {
		return nil, err
	}
	path := filepath.Join(dir.Run(), name)
	if err := checkStale(path); err != nil {
		return nil, err
	}
	// The socket is made beside its place and then renamed, so that a client that finds it
	// can use it.
	fresh := path + ".new"
	if err := os.Remove(fresh); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("removing the socket that a killed agent left: %w", err)
	}
	l, err := bind(fresh)
	if err != nil {
		return nil, err
	}
	file, err := publish(fresh, path)
	if err != nil {
		_ = l.Close() // the error that counts is err
		_ = os.Remove(fresh)
		return nil, err
	}
	return &Socket{l, path, file, log}, nil
}

// makeRun makes the run folder, for the daemon's own user alone.
func makeRun(dir root.Dir) error {
	if _, err := os.Stat(string(dir)); err != nil {
		return fmt.Errorf("root: %w", err)
	}
	run := dir.Run()
	if err := os.MkdirAll(filepath.Dir(run), 0o755); err != nil {
		return fmt.Errorf("making the run folder: %w", err)
	}
	if err := os.Mkdir(run, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("making the run folder: %w", err)
	}
	info, err := os.Lstat(run)
	if err != nil {
		return fmt.Errorf("looking at the run folder: %w", err)
	}
	if !info.IsDir() {
		return fmt.Errorf("%s is not a folder", run)
	}
	if uid := info.Sys().(*syscall.Stat_t).Uid; int(uid) != os.Geteuid() {
		return fmt.Errorf("%s belongs to user %d, not to the agent's %d", run, uid, os.Geteuid())
	}
	if err := os.Chmod(run, 0o700); err != nil {
		return fmt.Errorf("making the run folder private: %w", err)
	}
	return nil
}

// checkStale returns nil if Listen may make its socket at path: if nothing is there, a socket on which
// no daemon listens, or something that is empty. It returns ErrServed if a daemon listens there, and
// errInWay if something else is there.
func checkStale(path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("looking for a socket: %w", err)
	case info.Mode().Type() != fs.ModeSocket:
		return checkEmpty(path, info)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	conn, err := client.Dial(ctx, path)
	switch {
	case err == nil:
		_ = conn.Close()
		return ErrServed
	case errors.Is(err, unix.ECONNREFUSED), errors.Is(err, unix.ENOENT):
		return nil
	case errors.Is(err, client.ErrAway): // a daemon listens there, but accepts no connection
		return fmt.Errorf("%w: %w", ErrServed, err)
	case errors.Is(err, unix.EPROTOTYPE): // a daemon's socket is a stream
		return fmt.Errorf("%w: another program uses the socket %s: %w", errInWay, path, err)
	}
	return fmt.Errorf("looking for another agent: %w", err)
}

// checkEmpty returns nil if what is at a path, which is no socket, is an empty file, a pipe or a link to
// nothing: publish replaces these. publish also replaces a folder, if that is empty.
func checkEmpty(path string, info fs.FileInfo) error {
	switch mode := info.Mode(); {
	case mode.IsDir(), mode&fs.ModeNamedPipe != 0, mode.IsRegular() && info.Size() == 0:
		return nil
	case mode&fs.ModeSymlink != 0:
		if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
			return nil
		}
	}
	return fmt.Errorf("%w: %s is not a socket", errInWay, path)
}

// bind listens at a path of any length.
func bind(path string) (*net.UnixListener, error) {
	short, done, err := client.Reachable(path)
	if err != nil {
		return nil, err
	}
	defer done()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: short, Net: "unix"})
	if err != nil {
		// Without the short path: its number may change from try to try, and each new text is logged.
		return nil, fmt.Errorf("making %s: %w", path, errors.Unwrap(err))
	}
	l.SetUnlinkOnClose(false) // publish renames the file, and Remove removes it
	return l, nil
}

// publish gives a socket its mode and its place.
func publish(fresh, path string) (os.FileInfo, error) {
	if err := os.Chmod(fresh, 0o600); err != nil {
		return nil, fmt.Errorf("making the socket private: %w", err)
	}
	file, err := os.Lstat(fresh)
	if err != nil {
		return nil, fmt.Errorf("looking at the new socket: %w", err)
	}
	err = os.Rename(fresh, path)
	if errors.Is(err, unix.EISDIR) || errors.Is(err, fs.ErrExist) {
		if dir := unix.Rmdir(path); dir != nil { // Rmdir removes no socket that another agent has put there meanwhile
			return nil, fmt.Errorf("%w: removing the folder %s: %w", errInWay, path, dir)
		}
		err = os.Rename(fresh, path)
	}
	if errors.Is(err, unix.EBUSY) {
		return nil, fmt.Errorf("%w: something is mounted at %s: %w", errInWay, path, err)
	}
	if err != nil {
		return nil, fmt.Errorf("putting the socket in its place: %w", err)
	}
	return file, nil
}

// There reports whether the socket's file is still in its place, where clients look for it.
func (s *Socket) There() bool {
	now, err := os.Lstat(s.path)
	return err == nil && os.SameFile(now, s.file)
}

// Remove removes the socket's file, unless a successor's socket is in its place.
func (s *Socket) Remove() {
	if !s.There() {
		return
	}
	if err := os.Remove(s.path); err != nil {
		s.log.Warn("could not remove the socket", "error", err)
	}
}

// Accept returns the next connection of a user who may connect, and closes all others.
func (s *Socket) Accept() (net.Conn, error) {
	for {
		conn, err := s.AcceptUnix()
		if err != nil {
			return nil, err
		}
		peer, err := credentials(conn)
		if err == nil && mayConnect(peer.Uid, os.Geteuid()) {
			return conn, nil
		}
		_ = conn.Close()
		if err != nil {
			s.log.Warn("connection refused: its credentials cannot be read", "error", err)
		} else {
			s.log.Warn("connection refused", "uid", peer.Uid, "pid", peer.Pid)
		}
	}
}

// mayConnect reports whether a user may connect to a daemon that runs as euid.
func mayConnect(uid uint32, euid int) bool { return uid == 0 || int(uid) == euid }

// credentials returns the credentials that a peer had when it connected: SO_PEERCRED, as
// "ss -xp" shows them.
func credentials(conn *net.UnixConn) (*unix.Ucred, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	var peer *unix.Ucred
	var optErr error
	err = raw.Control(func(fd uintptr) {
		peer, optErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err == nil {
		err = optErr
	}
	return peer, err
}

package daemon

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/daemon/server"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/root"
)

// ErrTwice says that another agent of this instance lives in this network namespace:
// each would make again what the other one's DEL has deleted.
var ErrTwice = errors.New("another agent of this instance is running")

const (
	lockWait = time.Second // for an agent that is just ending
	lockPoll = 10 * time.Millisecond
)

// Lock is a locked file. The kernel unlocks it when the process ends, however it does.
// Only root can open it: what others could lock, such as an abstract socket's name or a
// network namespace's own file, they could keep an agent from starting with.
type Lock struct {
	path string
	file *os.File
}

// Alone sees to it that nobody else serves: at this root, or elsewhere with the same
// instance. It changes nothing of the root's.
func (d *Daemon) Alone() error {
	if err := server.Unserved(d.Root); err != nil {
		return err
	}
	if d.Sole == nil || d.locked != nil {
		return nil
	}
	locked, err := d.Sole(d.Instance, d.Root)
	if errors.Is(err, ErrTwice) {
		return err
	}
	if err != nil { // as in a container that cannot write to /run
		d.Log.Warn("nothing keeps another agent of this instance from starting", "err", err)
	}
	d.locked = locked
	return nil
}

// LockInstance returns a Place's Sole: it locks an instance in a network namespace.
func LockInstance(netns ns.Ref) func(instance string, dir root.Dir) (*Lock, error) {
	return func(instance string, dir root.Dir) (*Lock, error) {
		path := root.Lock(instance, netns.Ino)
		l, err := take(path, dir)
		if errors.Is(err, ErrTwice) {
			return nil, fmt.Errorf("%w: if %s was moved here, end that one first; if it is a copy, for an agent of its own, "+
				"remove %s and %s", err, dir, dir.State(), dir.Run())
		}
		if err != nil {
			return nil, fmt.Errorf("locking %s: %w", path, err)
		}
		return l, nil
	}
}

// Others reports whether another daemon, of another instance, lives in this network
// namespace.
func (d *Daemon) Others(instance string) bool {
	_, locked := root.Locked(root.Lock(instance, d.Netns.Ino))
	return locked
}

// LockAgain locks the instance again if somebody removed the file.
func (d *Daemon) LockAgain() error {
	if d.locked == nil || d.locked.there() {
		return nil
	}
	again, err := d.Sole(d.Instance, d.Root)
	if err != nil {
		return err
	}
	err = d.locked.file.Close()
	d.locked = again
	return err
}

// take locks a file, which it makes if there is none, and writes down who has it.
func take(path string, dir root.Dir) (*Lock, error) {
	for end := time.Now().Add(lockWait); ; time.Sleep(lockPoll) {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
		if err != nil {
			return nil, err
		}
		l := &Lock{path, f}
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil && l.there() {
			if f.Truncate(0) == nil { // where there is no room, the lock has to do
				_, _ = fmt.Fprintf(f, "process %d, --root %s\n", os.Getpid(), dir)
			}
			return l, nil
		}
		if err == unix.EWOULDBLOCK && time.Now().After(end) {
			err = fmt.Errorf("%w (%s)", ErrTwice, root.Holder(f))
		}
		_ = f.Close()
		if err != nil && err != unix.EWOULDBLOCK && err != unix.EINTR { // else it was removed by whoever had it
			return nil, err
		}
	}
}

// there reports whether the locked file still has its name.
func (l *Lock) there() bool {
	locked, err := l.file.Stat()
	if err != nil {
		return false
	}
	now, err := os.Lstat(l.path)
	return err == nil && os.SameFile(locked, now)
}

// release gives a lock back, and takes its file away.
func (l *Lock) release() error {
	if l == nil {
		return nil
	}
	if l.there() {
		_ = os.Remove(l.path) // while it is locked, and so nobody else's; if it stays, it is an empty word
	}
	return l.file.Close()
}

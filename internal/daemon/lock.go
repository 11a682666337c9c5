package daemon

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/daemon/server"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/ledger"
	"github.com/berth-net/berth/internal/root"
)

// ErrTwice says that another agent of this instance runs in this network namespace. Each of
// the two would take again what the other one has given back.
var ErrTwice = errors.New("another agent of this instance is running")

// Runs reports whether an error of opening a daemon says that the daemon runs already.
func Runs(err error) bool {
	return errors.Is(err, server.ErrServed) || errors.Is(err, ErrTwice) || errors.Is(err, ledger.ErrLocked)
}

const (
	lockWait = time.Second // how long take waits for an agent that is just ending
	lockPoll = 10 * time.Millisecond
)

// Lock is a locked file. The kernel unlocks it when the process ends, however that happens.
// Only root can open the file. With a lock that others could take, such as an abstract
// socket's name or a network namespace's own file, they could keep an agent from starting.
type Lock struct {
	path  string
	file  *os.File
	lstat func(string) (fs.FileInfo, error) // os.Lstat; tests let it fail
}

// Alone makes sure that nobody else serves at this root, or elsewhere with the same
// instance. It locks the instance, whose lock is outside the root, and changes nothing in
// the root.
func (d *Daemon) Alone() error {
	if err := server.Unserved(d.Root); err != nil {
		return err
	}
	if d.Sole == nil || d.locked != nil {
		return nil
	}
	locked, err := d.Sole(d.Instance, d.Root, nil)
	if errors.Is(err, ErrTwice) {
		return err
	}
	if err != nil { // for example in a container that cannot write to /run
		d.Log.Warn("could not lock the instance: nothing keeps another agent of this instance from starting", "err", err)
	}
	d.locked = locked
	return nil
}

// LockInstance returns a function for Place.Sole, which locks an instance in a network
// namespace.
func LockInstance(netns ns.Ref) func(instance string, dir root.Dir, held *Lock) (*Lock, error) {
	return func(instance string, dir root.Dir, held *Lock) (*Lock, error) {
		path := root.Lock(instance, netns.Ino)
		l, err := take(path, dir, held)
		if errors.Is(err, ErrTwice) {
			return nil, fmt.Errorf("%w: if root %s was moved here, end that agent first; if this root is a copy for a new agent, "+
				"remove %s and %s", err, dir, dir.State(), dir.Run())
		}
		if err != nil {
			return nil, fmt.Errorf("locking %s: %w", path, err)
		}
		return l, nil
	}
}

// Others reports whether a daemon of the given instance, which differs from d's instance, runs in
// this network namespace.
func (d *Daemon) Others(instance string) bool {
	_, locked := root.Locked(root.Lock(instance, d.Netns.Ino))
	return locked
}

// LockAgain locks the instance again if somebody has removed the lock's file. It returns
// ErrTwice if another daemon has locked the instance since. If the look at the file fails, LockAgain
// returns why: the daemon still has its lock, and the next look tells whether the file is gone.
func (d *Daemon) LockAgain() error {
	if d.locked == nil {
		return nil
	}
	if there, err := d.locked.there(); there || err != nil {
		return err
	}
	again, err := d.Sole(d.Instance, d.Root, d.locked)
	if err != nil || again == d.locked { // somebody has put the file back
		return err
	}
	err = d.locked.file.Close()
	d.locked = again
	return err
}

// take locks a file, and writes into the file which process and root have locked it. It makes the file
// if there is none. If the file is the one that held has locked, take returns held: a process cannot
// lock its file twice.
func take(path string, dir root.Dir, held *Lock) (*Lock, error) {
	for end := time.Now().Add(lockWait); ; time.Sleep(lockPoll) {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
		if err != nil {
			return nil, err
		}
		if held.is(f) {
			return held, f.Close()
		}
		l := &Lock{path, f, os.Lstat}
		there := false
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			if there, err = l.there(); err != nil && time.Now().Before(end) {
				err = nil // it may pass: try again
			}
		}
		if there {
			if f.Truncate(0) == nil { // if the disk is full, the lock alone is enough
				_, _ = fmt.Fprintf(f, "process %d, --root %s\n", os.Getpid(), dir)
			}
			return l, nil
		}
		if err == unix.EWOULDBLOCK && time.Now().After(end) {
			err = fmt.Errorf("%w (%s)", ErrTwice, root.Holder(f))
		}
		_ = f.Close()
		if err != nil && err != unix.EWOULDBLOCK && err != unix.EINTR { // otherwise try again: it is locked, or its former holder has removed it
			return nil, err
		}
	}
}

// there reports whether the locked file is still the one at its path. An error, such as ENOMEM,
// says that nobody can tell for the moment.
func (l *Lock) there() (bool, error) {
	locked, err := l.file.Stat()
	if err != nil {
		return false, err
	}
	now, err := l.lstat(l.path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil && os.SameFile(locked, now), err
}

// is reports whether f is the locked file.
func (l *Lock) is(f *os.File) bool {
	if l == nil {
		return false
	}
	locked, err := l.file.Stat()
	if err != nil {
		return false
	}
	opened, err := f.Stat()
	return err == nil && os.SameFile(locked, opened)
}

// release removes the lock's file, and gives the lock back.
func (l *Lock) release() error {
	if l == nil {
		return nil
	}
	if there, _ := l.there(); there {
		_ = os.Remove(l.path) // while this process has the lock, so that the file is nobody else's; a file that stays does no harm
	}
	return l.file.Close()
}

package ledger

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

const (
	lockWait = 500 * time.Millisecond // how long to wait for the lock: an agent may just be ending, or a reader
	lockPoll = 10 * time.Millisecond
)

// openFile opens the ledger's file for writing, and locks it. If there is no file, or an
// empty one (left by a crash, or made by hand), it creates a ledger.
func openFile(opts Options) (file, int64, error) {
	for {
		f, err := opts.volume.open(opts.Path, os.O_CREATE)
		if err != nil {
			return nil, 0, explain(err)
		}
		size, err := lockFile(f, opts.Path, unix.LOCK_EX)
		switch {
		case err != nil:
			f.Close()
			return nil, 0, err
		case size > 0:
			return f, size, nil
		case size == 0:
			err = create(opts)
		}
		f.Close() // another file has the ledger's name by now
		if err != nil {
			return nil, 0, fmt.Errorf("creating %s: %w", opts.Path, explain(err))
		}
	}
}

// resolve returns the path to which the symbolic links at a path lead, whether there is a
// file or not. A file that is written anew takes the place of the ledger, and not the place of a
// symbolic link to it.
func resolve(path string) (string, error) {
	for range 40 { // as many as the kernel follows
		to, err := os.Readlink(path)
		if err != nil { // not there, or no link
			dir, err := filepath.EvalSymlinks(filepath.Dir(path))
			return filepath.Join(dir, filepath.Base(path)), err
		}
		if !filepath.IsAbs(to) {
			to = filepath.Join(filepath.Dir(path), to)
		}
		path = to
	}
	return "", &fs.PathError{Op: "resolve", Path: path, Err: unix.ELOOP}
}

// lockFile locks a file that was opened at path and returns its size; -1 if path leads to
// another file by now, or to none. If another process has the lock, lockFile waits a little;
// then the error is ErrLocked, and names that process.
func lockFile(f statter, path string, how int) (size int64, err error) {
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	if !info.Mode().IsRegular() {
		return 0, fmt.Errorf("%s is not a regular file", path)
	}
	for deadline := time.Now().Add(lockWait); ; time.Sleep(lockPoll) {
		err := unix.Flock(int(f.Fd()), how|unix.LOCK_NB)
		if err == nil {
			break
		}
		if err != unix.EWOULDBLOCK && err != unix.EINTR {
			return 0, fmt.Errorf("locking %s: %w", path, err)
		}
		if time.Now().After(deadline) {
			return 0, fmt.Errorf("%w: %s is locked by %s", ErrLocked, path, lockHolder(info))
		}
	}
	now, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && !os.SameFile(info, now) {
		return -1, nil
	}
	if err != nil {
		return 0, err
	}
	return now.Size(), nil
}

// statter is a file as lockFile needs it.
type statter interface {
	Stat() (os.FileInfo, error)
	Fd() uintptr
}

// create makes a new ledger's file. The file gets its name only when it is complete and
// durable. The caller has the lock on an empty file of that name, so that nobody else
// creates one.
func create(opts Options) error {
	body, err := (&store{opts: opts}).headOf(Epoch{}, nil, kept{})
	if err != nil {
		return err
	}
	if err := removeAsides(opts); err != nil {
		return err
	}
	a, err := writeAside(opts, contents{head: body}, reserve(0)+growBy, nil)
	if err != nil {
		return err
	}
	if err = a.finish(); err == nil {
		err = opts.volume.rename(a.path, opts.Path)
	}
	if err != nil {
		return errors.Join(err, a.drop(opts.volume))
	}
	a.file.Close()
	return opts.volume.syncDir(filepath.Dir(opts.Path))
}

// explain adds to an error of opening the file what the operator can do about it.
func explain(err error) error {
	switch {
	case isFull(err):
		return fmt.Errorf("%w: %w", ErrFull, err)
	case errors.Is(err, unix.EROFS), errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%w (the agent must be able to write its ledger; `berth ledger` only reads it)", err)
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%w (its folder must exist)", err)
	}
	return err
}

package ledger

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	bolt "go.etcd.io/bbolt"
	"golang.org/x/sys/unix"
)

const (
	lockWait = 500 * time.Millisecond // how long to wait for the lock: an agent may just be ending, or a reader
	lockPoll = 10 * time.Millisecond
)

// openFile opens the ledger's file for writing, and locks it. If there is no file, or an
// empty one (left by a crash, or made by hand), it creates a ledger.
func openFile(path string) (*os.File, error) {
	for {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return nil, explain(err)
		}
		size, err := lockFile(f, path, unix.LOCK_EX)
		switch {
		case err != nil:
			f.Close()
			return nil, err
		case size > 0:
			return f, nil
		case size == 0:
			err = create(path)
		}
		f.Close() // another file has the ledger's name by now
		if err != nil {
			return nil, fmt.Errorf("creating %s: %w", path, err)
		}
	}
}

// lockFile locks a file that was opened at path and returns its size; -1 if path leads to
// another file by now, or to none. If another process has the lock, lockFile waits a little;
// then the error is ErrLocked, and names that process.
func lockFile(f *os.File, path string, how int) (size int64, err error) {
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

// create makes a new ledger's file. The file gets its name only when it is complete and
// durable. The caller has the lock on an empty file of that name, so that nobody else
// creates one.
func create(path string) error {
	next := path + ".new"
	if err := os.Remove(next); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return explain(err)
	}
	db, err := bolt.Open(next, 0o600, boltOptions(nil))
	if err != nil {
		return explain(err)
	}
	err = db.Update(func(tx *bolt.Tx) error {
		h := head{Schema: Schema, Seq: uint64(tx.ID()), Sums: map[string]*sum{}}
		for _, bucket := range dataBuckets {
			h.Sums[bucket] = &sum{}
			if _, err := tx.CreateBucket([]byte(bucket)); err != nil {
				return err
			}
		}
		if _, err := tx.CreateBucket([]byte(bucketMeta)); err != nil {
			return err
		}
		return putHead(tx, &h)
	})
	if err := errors.Join(err, db.Close()); err != nil {
		return explain(err)
	}
	f, err := os.OpenFile(next, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	err = allocate(f, 0, (baseReserve+minTail+growBy)*pageSize)
	err = errors.Join(err, f.Sync(), f.Close())
	if err != nil {
		return errors.Join(explain(err), os.Remove(next))
	}
	if err := os.Rename(next, path); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

// allocate makes the file system allocate the bytes of a file from one offset to another,
// without changing bytes that exist. If the file system cannot do that, allocate writes
// zeros behind the file's end.
func allocate(f *os.File, from, to int64) error {
	var err error
	for {
		err = unix.Fallocate(int(f.Fd()), 0, from, to-from)
		if err != unix.EINTR {
			break
		}
	}
	if err == unix.EOPNOTSUPP {
		err = zero(f, to)
	}
	if err != nil {
		return fmt.Errorf("allocating %d bytes of %s: %w", to-from, f.Name(), err)
	}
	return nil
}

// zero writes zeros from the file's end to an offset.
func zero(f *os.File, to int64) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	zeros := make([]byte, 64<<10)
	for at := info.Size(); at < to; {
		n, err := f.WriteAt(zeros[:min(int64(len(zeros)), to-at)], at)
		if err != nil {
			return err
		}
		at += int64(n)
	}
	return nil
}

func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
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

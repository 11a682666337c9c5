package deletions

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Spares is how many spare files a queue has: so many deletions have room on a
// disk that is full.
const Spares = 256

// staleAfter is how old a temporary file is whose writer is dead.
const staleAfter = time.Hour

var errNoSpare = errors.New("there is none left")

// writeSpare writes into a spare file, whose blocks are on the disk already.
func (f *folder) writeSpare(r Record, content []byte) error {
	padded := append(content, bytes.Repeat([]byte{' '}, MaxSize-len(content))...)
	for i := range Spares {
		tmp, err := tmpName()
		if err != nil {
			return err
		}
		switch err := unix.Renameat(f.fd, spareName(i), f.fd, tmp); {
		case err == unix.ENOENT: // taken by a deletion before, or by one that is being written now
			continue
		case err != nil:
			return fmt.Errorf("taking %s: %w", spareName(i), err)
		}
		fd, err := openat(f.fd, tmp, unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
		if err == nil {
			err = fill(fd, padded)
		}
		if err == nil {
			err = f.enqueue(r, tmp)
		}
		if err == nil {
			return nil
		}
		_ = unix.Renameat(f.fd, tmp, f.fd, spareName(i)) // for the next one
		return err
	}
	return errNoSpare
}

// Refill makes spare files until there are Spares of them, and removes the
// temporary files of writers that died more than an hour ago. spares is how
// many there are then, also after an error.
func (q *Queue) Refill() (spares int, err error) {
	f, err := openFolder(q.dir)
	if err != nil {
		return 0, err
	}
	defer f.close()
	names, err := f.list()
	if err != nil {
		return 0, err
	}
	have := make(map[string]bool)
	var errs []error
	for _, name := range names {
		switch {
		case strings.HasPrefix(name, tmpPrefix):
			errs = append(errs, f.removeStale(name))
		case strings.HasPrefix(name, sparePrefix):
			have[name] = true
		}
	}
	for i := range Spares {
		if have[spareName(i)] {
			spares++
			continue
		}
		if err := f.makeSpare(i); err != nil {
			errs = append(errs, err)
			break
		}
		spares++
	}
	return spares, errors.Join(append(errs, fsync(f.fd))...)
}

// makeSpare makes a spare file, whole or not at all.
func (f *folder) makeSpare(i int) error {
	tmp, err := tmpName()
	if err != nil {
		return err
	}
	fd, err := openat(f.fd, tmp, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return fmt.Errorf("making a spare file in %s: %w", f.path, err)
	}
	err = fill(fd, bytes.Repeat([]byte{' '}, MaxSize))
	if err == nil {
		err = unix.Renameat(f.fd, tmp, f.fd, spareName(i))
	}
	if err != nil {
		_ = unix.Unlinkat(f.fd, tmp, 0)
		return fmt.Errorf("making a spare file in %s: %w", f.path, err)
	}
	return nil
}

// removeStale removes a temporary file that nobody writes any more. What
// counts is when its inode changed: a spare file's content may be old when it
// is taken.
func (f *folder) removeStale(name string) error {
	var st unix.Stat_t
	err := unix.Fstatat(f.fd, name, &st, unix.AT_SYMLINK_NOFOLLOW)
	if err == nil && time.Since(time.Unix(st.Ctim.Unix())) > staleAfter {
		err = unix.Unlinkat(f.fd, name, 0)
	}
	if err != nil && err != unix.ENOENT {
		return fmt.Errorf("removing the stale file %s: %w", name, err)
	}
	return nil
}

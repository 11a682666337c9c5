package deletions

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Spares is how many spare files a queue has when an agent has just run. They
// are for deletions on a disk that is full. While there is room, those from
// reserved on serve as well: a deletion in a spare file takes half the time,
// since nothing of it but its name is news to the file system.
const (
	Spares   = 256
	reserved = 128
)

// staleAfter is how old a temporary file is whose writer is dead.
const staleAfter = time.Hour

var errNoSpare = errors.New("there is none left")

// badSpareError says that one spare file cannot be written: somebody has cut it, or put
// something else in its place. It hides what ENOENT would say of the file.
type badSpareError struct {
	name string
	err  error
}

func (e *badSpareError) Error() string { return fmt.Sprintf("using %s: %v", e.name, e.err) }

// mostBroken is how many spare files fail for another reason than a full disk before
// writeSpare gives up: each may have waited for a disk that is broken.
const mostBroken = 3

// writeSpare writes into some spare file, whose blocks are on the disk already. One that
// is damaged stays where it is, and spoils no other.
func (f *folder) writeSpare(r Record, content []byte) error {
	var first error
	broken := 0
	for i := range Spares {
		err := f.useSpare(i, r, content)
		if errors.Is(err, unix.ENOENT) {
			continue
		}
		var bad *badSpareError
		if !errors.As(err, &bad) {
			return err
		}
		if first == nil {
			first = err
		}
		if !full(bad.err) {
			broken++
		}
		if broken == mostBroken {
			break
		}
	}
	if first != nil {
		return fmt.Errorf("%w that can be used: %w", errNoSpare, first)
	}
	return errNoSpare
}

// guesses is how many spare files writeQuick looks for.
const guesses = 3

// writeQuick writes into a spare file that is not reserved, if it finds one.
func (f *folder) writeQuick(r Record, content []byte) error {
	for range guesses {
		n, err := random()
		if err != nil {
			return err
		}
		if err := f.useSpare(reserved+int(n%(Spares-reserved)), r, content); !errors.Is(err, unix.ENOENT) {
			return err
		}
	}
	return errNoSpare
}

// useSpare writes into one spare file. unix.ENOENT says that it is not there:
// taken before, or by a deletion that is being written now.
func (f *folder) useSpare(i int, r Record, content []byte) error {
	tmp, err := f.rename(spareName(i), tmpName)
	if err != nil {
		return err
	}
	fd, err := f.claim(tmp)
	if errors.Is(err, unix.ENOENT) {
		return unix.ENOENT // taken for a dead writer's
	}
	if err == nil {
		defer unix.Close(fd) // when it is enqueued
		padding := bytes.Repeat([]byte{' '}, MaxSize-len(content))
		err = fill(fd, append(content[:len(content):len(content)], padding...))
	}
	if err != nil {
		_ = unix.Renameat(f.fd, tmp, f.fd, spareName(i)) // Refill replaces it
		return &badSpareError{spareName(i), err}
	}
	if err = f.enqueue(r, tmp); err != nil {
		_ = unix.Renameat(f.fd, tmp, f.fd, spareName(i))     // for the next one
		return fmt.Errorf("using %s: %v", spareName(i), err) // of which ENOENT would say something else
	}
	return nil
}

// claim opens a temporary file and locks it, for as long as it is open: so who needs
// room can tell a file whose writer is dead. unix.ENOENT says that it is no longer
// there, or another's.
func (f *folder) claim(tmp string) (fd int, err error) {
	if fd, err = openat(f.fd, tmp, unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0); err != nil {
		return -1, err
	}
	// Others take a file with its lock alone; so one that has its name still keeps it.
	var mine, named unix.Stat_t
	err = retry(func() error { return unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) })
	switch err {
	case nil:
		if err = unix.Fstat(fd, &mine); err == nil {
			err = unix.Fstatat(f.fd, tmp, &named, unix.AT_SYMLINK_NOFOLLOW)
		}
		if err == nil && mine.Ino != named.Ino {
			err = unix.ENOENT
		}
	case unix.EWOULDBLOCK:
		err = unix.ENOENT
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// takeBack makes spare files again of those whose writers were killed, for at most
// enough of the missing ones, and returns how many there were.
func (f *folder) takeBack(enough int) (taken int) {
	names, err := f.list()
	if err != nil {
		return 0
	}
	spare := 0
	for _, tmp := range names {
		if taken == enough {
			break
		}
		if !strings.HasPrefix(tmp, tmpPrefix) {
			continue
		}
		var st unix.Stat_t
		if unix.Fstatat(f.fd, tmp, &st, unix.AT_SYMLINK_NOFOLLOW) != nil || st.Mode&unix.S_IFMT != unix.S_IFREG || st.Size != MaxSize {
			continue
		}
		fd, err := f.claim(tmp)
		if err != nil {
			continue
		}
		for ; spare < Spares; spare++ {
			err = unix.Renameat2(f.fd, tmp, f.fd, spareName(spare), unix.RENAME_NOREPLACE)
			if err != unix.EEXIST {
				break
			}
		}
		unix.Close(fd)
		if err == nil {
			taken++
		}
	}
	return taken
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
	q.refill.Lock() // behind what hangs while the folder's file system does
	defer q.refill.Unlock()
	f.takeBack(Spares) // before there are new ones: they keep the room
	staleErr := f.removeStale(staleAfter)
	var missing []int
	for i := range Spares {
		var st unix.Stat_t
		err := unix.Fstatat(f.fd, spareName(i), &st, unix.AT_SYMLINK_NOFOLLOW)
		if err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG || st.Size != MaxSize {
			missing = append(missing, i)
		}
	}
	spares = Spares - len(missing)
	for _, i := range missing {
		made := f.makeSpare(i)
		if made == nil {
			spares++
		} else if err == nil {
			err = made
		}
		if full(made) {
			break
		}
	}
	if len(missing) > 0 {
		err = errors.Join(err, fsync(f.fd))
	}
	return spares, errors.Join(staleErr, err)
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
	defer unix.Close(fd)
	_ = unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) // from here on it looks like a dead writer's
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

// removeStale removes temporary files that nobody writes any more, those whose
// inodes have not changed for age. (The content of a spare file may be old when
// it is taken.)
func (f *folder) removeStale(age time.Duration) error {
	names, err := f.list()
	if err != nil {
		return err
	}
	var errs []error
	for _, name := range names {
		if !strings.HasPrefix(name, tmpPrefix) {
			continue
		}
		var st unix.Stat_t
		err := unix.Fstatat(f.fd, name, &st, unix.AT_SYMLINK_NOFOLLOW)
		if err == nil && time.Since(time.Unix(st.Ctim.Unix())) >= age {
			err = unix.Unlinkat(f.fd, name, 0)
		}
		if err != nil && err != unix.ENOENT {
			errs = append(errs, fmt.Errorf("removing the stale file %s: %w", name, err))
		}
	}
	return errors.Join(errs...)
}

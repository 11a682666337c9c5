package deletions

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Spares is how many spare files a queue has at least when an agent has just run. They are for
// deletions on a full disk. A node of many pods has more of them, with the numbers from Spares on.
// (Plugins up to 2026-11 know only the numbers below Spares.) While the disk has room, writers also
// use the spare files from number `reserved` up to Spares: to write a deletion into a spare file
// takes half the time, because only the name is new to the file system.
const (
	Spares   = 256
	reserved = 128
)

// staleAfter is the age from which a temporary file's writer counts as dead.
const staleAfter = time.Hour

var errNoSpare = errors.New("no spare file is left")

// badSpareError says that one spare file cannot be written: somebody has shortened it, or has
// put something else in its place. It does not wrap err, because ENOENT would say that there
// is no such spare file.
type badSpareError struct {
	name string
	err  error
}

func (e *badSpareError) Error() string { return fmt.Sprintf("using %s: %v", e.name, e.err) }

// mostBroken is the number of spare files after which writeSpare gives up, if they fail for
// another reason than a full disk: each of them may have waited for a broken disk.
const mostBroken = 3

// writeSpare writes a deletion into some spare file, whose blocks are on the disk already. A
// damaged spare file stays where it is, and writeSpare tries the others.
func (f *folder) writeSpare(r Record, content []byte) error {
	names, err := f.list()
	if err != nil {
		return err
	}
	var first error
	broken := 0
	for _, spare := range names {
		if !strings.HasPrefix(spare, sparePrefix) {
			continue
		}
		err := f.useSpare(spare, r, content)
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

// guesses is how many spare files writeQuick tries, each at random.
const guesses = 3

// writeQuick writes a deletion into a spare file that is not reserved, if it finds one.
func (f *folder) writeQuick(r Record, content []byte) error {
	for range guesses {
		n, err := random()
		if err != nil {
			return err
		}
		if err := f.useSpare(spareName(reserved+int(n%(Spares-reserved))), r, content); !errors.Is(err, unix.ENOENT) {
			return err
		}
	}
	return errNoSpare
}

// useSpare writes a deletion into one spare file. unix.ENOENT says that the file is not
// there: an earlier deletion has taken it, or a deletion that is being written now.
func (f *folder) useSpare(spare string, r Record, content []byte) error {
	tmp, err := f.rename(spare, tmpName)
	if err != nil {
		return err
	}
	fd, err := f.claim(tmp)
	if errors.Is(err, unix.ENOENT) {
		return unix.ENOENT // somebody took it for a dead writer's file
	}
	if err == nil {
		defer unix.Close(fd) // keeps the lock until the deletion is enqueued
		padding := bytes.Repeat([]byte{' '}, MaxSize-len(content))
		err = fill(fd, append(content[:len(content):len(content)], padding...))
	}
	if err != nil {
		_ = unix.Renameat(f.fd, tmp, f.fd, spare) // Refill replaces the bad file
		return &badSpareError{spare, err}
	}
	if err = f.enqueue(r, tmp); err != nil {
		_ = unix.Renameat(f.fd, tmp, f.fd, spare)     // for the next deletion
		return fmt.Errorf("using %s: %v", spare, err) // not %w: ENOENT would say that there is no such spare file
	}
	return nil
}

// claim opens a temporary file and locks it for as long as it is open, so that other writers that
// need room can tell whether the file's writer is dead. unix.ENOENT says that the file is no longer
// there, or that somebody else has it.
func (f *folder) claim(tmp string) (fd int, err error) {
	if fd, err = openat(f.fd, tmp, unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0); err != nil {
		return -1, err
	}
	// Others take a file only with its lock. So if the locked file still has its name, nobody
	// has taken it, and nobody will.
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

// takeBack makes spare files again of temporary files whose writers were killed. It makes at most
// `enough`, with numbers below `below`, and returns how many it made.
func (f *folder) takeBack(enough, below int) (taken int) {
	names, err := f.list()
	if err != nil {
		return 0
	}
	spare := 0
	for _, tmp := range names {
		if taken == enough || spare == below {
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
		for ; spare < below; spare++ {
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

// Refill makes the spare files with the numbers below want that are missing, but at most Spares of
// them, and removes the temporary files of writers that died more than an hour ago. It removes no
// spare file: a folder keeps the most that it ever had. spares is the number of spare files
// afterwards, of all numbers, also after an error. If there is no error and spares is less than
// want, the caller calls Refill again: one call takes no longer on a node of many pods, where others
// wait for the disk, too.
func (q *Queue) Refill(want int) (spares int, err error) {
	f, err := openFolder(q.dir)
	if err != nil {
		return 0, err
	}
	defer f.close()
	q.refill.Lock() // after openFolder, which may hang with the folder's file system
	defer q.refill.Unlock()
	f.takeBack(want, want) // before new spare files are made: the temporary files have the room already
	staleErr := f.removeStale(staleAfter)
	has, err := f.spares()
	if err != nil {
		return 0, errors.Join(staleErr, err)
	}
	spares = len(has)
	made := 0
	for i := 0; i < want && made < Spares; i++ {
		if has[i] {
			continue
		}
		made++
		makeErr := f.makeSpare(i)
		if makeErr == nil {
			spares++
		} else if err == nil {
			err = makeErr
		}
		if full(makeErr) {
			break
		}
	}
	if made > 0 {
		err = errors.Join(err, fsync(f.fd))
	}
	return spares, errors.Join(staleErr, err)
}

// spares returns the numbers of the spare files that a deletion can use.
func (f *folder) spares() (map[int]bool, error) {
	names, err := f.list()
	if err != nil {
		return nil, err
	}
	has := make(map[int]bool, Spares)
	for _, name := range names {
		i, ok := spareNumber(name)
		if !ok {
			continue
		}
		var st unix.Stat_t
		err := unix.Fstatat(f.fd, name, &st, unix.AT_SYMLINK_NOFOLLOW)
		if err == nil && st.Mode&unix.S_IFMT == unix.S_IFREG && st.Size == MaxSize {
			has[i] = true
		}
	}
	return has, nil
}

// makeSpare makes the i-th spare file, whole or not at all.
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
	_ = unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) // without the lock, the file would look like a dead writer's once it has its size
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

// removeStale removes temporary files that nobody writes any more: those whose inodes have
// not changed for age. (The time of the content does not tell, because a spare file's content
// may be old when a writer takes it.)
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

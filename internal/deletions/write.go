package deletions

import (
	"errors"
	"fmt"
	"math"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/root"
)

// Write puts a deletion into the queue of a root. If it returns nil, the deletion is on disk
// for good, and an agent that watches is told of it. After an error the deletion may be there all
// the same, which does no harm: the caller that gets the error repeats the deletion.
//
// On a full disk or quota (ENOSPC, EDQUOT) Write uses a spare file. If there are many spare files,
// Write uses one for speed, whether the disk is full or not. If no spare file is left, Write uses
// the files of deletions that newer deletions repeat (makeRoom).
func Write(dir root.Dir, r Record) error {
	content, err := r.encode()
	if err != nil {
		return fmt.Errorf("queueing the deletion: %w", err)
	}
	// Write tries a second time if somebody removes the folder, or the temporary file, meanwhile.
	for range 2 {
		if err = write(dir, r, content); !errors.Is(err, unix.ENOENT) {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("queueing the deletion: %w", err)
	}
	return nil
}

func write(dir root.Dir, r Record, content []byte) error {
	f, err := openFolder(dir)
	if err != nil {
		return err
	}
	defer f.close()
	if f.writeQuick(r, content) == nil {
		return nil
	}
	err = f.writeNew(r, content)
	if !full(err) {
		return err
	}
	spareErr := f.writeSpare(r, content)
	if errors.Is(spareErr, errNoSpare) && f.takeBack(1, math.MaxInt) > 0 {
		spareErr = f.writeSpare(r, content)
	}
	if errors.Is(spareErr, errNoSpare) {
		spareErr = f.writeInRoom(r, content)
	}
	if spareErr != nil {
		return fmt.Errorf("%w; using a spare file instead: %w", err, spareErr)
	}
	return nil
}

// writeInRoom makes room, and writes the deletion there.
func (f *folder) writeInRoom(r Record, content []byte) error {
	made, err := f.makeRoom()
	if made == 0 {
		return errors.Join(errNoSpare, err)
	}
	if err = f.writeSpare(r, content); errors.Is(err, errNoSpare) { // the files could not become spare ones, and are removed
		return f.writeNew(r, content)
	}
	return err
}

// full reports whether an error says that there is no room, for anybody or for this user.
func full(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }

// writeNew writes a deletion into a new file.
func (f *folder) writeNew(r Record, content []byte) error {
	tmp, err := f.writeTmp(content)
	if err != nil {
		return err
	}
	if err := f.enqueue(r, tmp); err != nil {
		_ = unix.Unlinkat(f.fd, tmp, 0) // if that fails, the agent removes the file
		return err
	}
	return nil
}

// writeTmp writes a temporary file. The content is durable, the name is not.
func (f *folder) writeTmp(content []byte) (tmp string, err error) {
	tmp, err = tmpName()
	if err != nil {
		return "", err
	}
	fd, err := openat(f.fd, tmp, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return "", fmt.Errorf("making a file in %s: %w", f.path, err)
	}
	err = fill(fd, content)
	unix.Close(fd)
	if err != nil {
		_ = unix.Unlinkat(f.fd, tmp, 0) // if that fails, the agent removes the file
		return "", err
	}
	return tmp, nil
}

// fill writes a file from its beginning, durably.
func fill(fd int, content []byte) error {
	for at := 0; at < len(content); {
		n, err := unix.Pwrite(fd, content[at:], int64(at))
		if err != nil && err != unix.EINTR {
			return fmt.Errorf("writing: %w", err)
		}
		at += max(n, 0)
	}
	if err := retry(func() error { return unix.Fdatasync(fd) }); err != nil {
		return fmt.Errorf("syncing the file: %w", err)
	}
	return nil
}

// enqueue renames a written file to the name of a deletion, durably.
func (f *folder) enqueue(r Record, tmp string) error {
	if _, err := f.rename(tmp, r.newName); err != nil {
		return err
	}
	if err := fsync(f.fd); err != nil {
		return fmt.Errorf("syncing %s: %w", f.path, err)
	}
	return nil
}

// manyNames is how many names rename tries on a full disk.
const manyNames = 16

// rename renames a file to a name that newName returns; newName returns another name each time. On
// a full disk it tries several names until one finds room in the folder: ext4 chooses a block by
// the name's hash, and cannot split a block that is full (seen for 1 name in 40).
func (f *folder) rename(from string, newName func() (string, error)) (to string, err error) {
	for range manyNames {
		if to, err = newName(); err != nil {
			return "", err
		}
		if err = unix.Renameat(f.fd, from, f.fd, to); !full(err) {
			break
		}
	}
	if err != nil {
		return "", fmt.Errorf("renaming %s in %s: %w", from, f.path, err)
	}
	return to, nil
}

func tmpName() (string, error) {
	random, err := randomText()
	if err != nil {
		return "", err
	}
	return tmpPrefix + random, nil
}

package deletions

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Why a file is no deletion, beyond what parse finds.
var (
	errName    = errors.New("its name is not one of a deletion")
	errKey     = errors.New("its name is that of another attachment's deletion")
	errRegular = errors.New("it is not a regular file")
)

// list returns the names in the folder, in no order.
func (f *folder) list() ([]string, error) {
	fd, err := openat(f.fd, ".", unix.O_RDONLY|unix.O_DIRECTORY, 0) // a descriptor with an offset of its own
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", f.path, err)
	}
	d := os.NewFile(uintptr(fd), f.path)
	defer d.Close()
	names, err := d.Readdirnames(-1)
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", f.path, err)
	}
	return names, nil
}

// read reads a file as a deletion. It never follows a symbolic link, and never waits for a
// file that is not regular.
func (f *folder) read(name string) (Entry, error) {
	var st unix.Stat_t
	if err := unix.Fstatat(f.fd, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return Entry{}, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return Entry{}, errRegular
	}
	if !isName(name) {
		return Entry{}, errName
	}
	fd, err := openat(f.fd, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return Entry{}, err
	}
	defer unix.Close(fd)
	raw, err := readAll(fd)
	if err != nil {
		return Entry{}, err
	}
	r, err := parse(raw)
	if err == nil && !strings.HasPrefix(name, keyName(r.Network, r.Container, r.Ifname)) {
		err = errKey
	}
	if err != nil {
		// A newer deletion may repeat this one, and a writer may have taken the file for another
		// deletion meanwhile (room.go).
		if gone := unix.Fstatat(f.fd, name, &st, unix.AT_SYMLINK_NOFOLLOW); gone == unix.ENOENT {
			return Entry{}, gone
		}
		return Entry{}, err
	}
	return Entry{Name: name, Record: r, Written: time.Unix(st.Mtim.Unix())}, nil
}

// readAll reads a file, but no more than MaxSize+1 bytes: more than MaxSize is too much.
func readAll(fd int) ([]byte, error) {
	raw := make([]byte, MaxSize+1)
	n := 0
	for n < len(raw) {
		var more int
		err := retry(func() (err error) { more, err = unix.Pread(fd, raw[n:], int64(n)); return err })
		if err != nil {
			return nil, err
		}
		if more == 0 {
			break
		}
		n += more
	}
	return raw[:n], nil
}

// passing reports whether an error in reading a file is the system's, and so says nothing
// about the file. The file may be a deletion all the same, and stays in its place until
// somebody can read it.
func passing(err error) bool {
	var no unix.Errno
	return errors.As(err, &no)
}

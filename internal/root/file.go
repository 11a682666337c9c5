package root

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// ErrIrregular says that a path leads to something that is no regular file.
var ErrIrregular = errors.New("it is not a regular file")

// Open opens a regular file to read, and refuses anything else: a plain open of a FIFO or a
// device may wait for ever, and so may a read from it.
func Open(path string) (*os.File, error) { return open(path, 0) }

// open is Open with further flags.
func open(path string, flags int) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY|flags, 0)
	if errors.Is(err, unix.ENXIO) || errors.Is(err, unix.ENODEV) || flags&unix.O_NOFOLLOW != 0 && errors.Is(err, unix.ELOOP) { // a socket, a device without a driver, or a link
		return nil, fmt.Errorf("opening %s: %w", path, ErrIrregular)
	}
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("opening %s: %w", path, ErrIrregular)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// ReadFile is os.ReadFile by way of Open.
func ReadFile(path string) ([]byte, error) {
	f, err := Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(f)
}

// ReadBounded is ReadFile for a file of at most so many bytes: a longer one is an error.
func ReadBounded(path string, most int) ([]byte, error) { return readBounded(path, most, 0) }

// ReadBoundedUnlinked is ReadBounded for a path at which others may put a symbolic link: the link is refused, and not followed.
func ReadBoundedUnlinked(path string, most int) ([]byte, error) {
	return readBounded(path, most, unix.O_NOFOLLOW)
}

func readBounded(path string, most, flags int) ([]byte, error) {
	f, err := open(path, flags)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	raw, err := io.ReadAll(io.LimitReader(f, int64(most)+1))
	if err == nil && len(raw) > most {
		err = fmt.Errorf("it has more than %d bytes", most)
	}
	return raw, err
}

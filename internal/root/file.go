package root

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// ErrIrregular says that something else than a file has a file's name.
var ErrIrregular = errors.New("it is no regular file")

// Open opens a file to read, and nothing else: for a FIFO or a device a plain open
// waits, maybe for ever, and so does who reads.
func Open(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if errors.Is(err, unix.ENXIO) || errors.Is(err, unix.ENODEV) { // a socket, or a device without a driver
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

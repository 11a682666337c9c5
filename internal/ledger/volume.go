package ledger

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// volume is the file system as the ledger writes to it. Tests use a volume that fails, or dies, at
// a chosen call.
type volume interface {
	// open opens a file for writing; with os.O_EXCL a new one.
	open(path string, flag int) (file, error)
	rename(from, to string) error
	link(from, to string) error
	remove(path string) error
	syncDir(path string) error
}

// file is an open file of a volume.
type file interface {
	ReadAt(b []byte, at int64) (int, error)
	WriteAt(b []byte, at int64) (int, error)
	Stat() (os.FileInfo, error)
	Truncate(size int64) error
	Punch(at, n int64) error // makes a hole of n bytes
	Sync() error             // fsync
	Datasync() error         // fdatasync: the data, and the metadata without which the data cannot be found
	Fd() uintptr
	Close() error
}

// local is the volume outside of tests: the system's own files.
type local struct{}

type diskFile struct{ *os.File }

func (local) open(path string, flag int) (file, error) {
	f, err := os.OpenFile(path, flag|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	return diskFile{f}, nil
}

func (local) rename(from, to string) error { return os.Rename(from, to) }
func (local) link(from, to string) error   { return os.Link(from, to) }
func (local) remove(path string) error     { return removeFile(path) }

func (local) syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	err = d.Sync()
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) { // the file system cannot sync a folder
		err = nil
	}
	return errors.Join(err, d.Close())
}

func (f diskFile) Punch(at, n int64) error {
	err := unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, at, n)
	return os.NewSyscallError("fallocate", err)
}

func (f diskFile) Datasync() error {
	for {
		err := unix.Fdatasync(int(f.Fd()))
		if err != unix.EINTR {
			return os.NewSyscallError("fdatasync", err)
		}
	}
}

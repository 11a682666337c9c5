package deletions

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/root"
)

// Path returns the path of a queue's folder.
func Path(dir root.Dir) string { return filepath.Join(dir.State(), "deletions") }

// folder is an open folder. All access to its files goes through fd, and never through a
// symbolic link, so that nobody can exchange the folder meanwhile.
type folder struct {
	fd   int
	path string
}

// openFolder opens a queue's folder, and makes it if it is missing. The root itself has to
// be there: a mistyped root would take deletions at which no agent ever looks.
func openFolder(dir root.Dir) (*folder, error) {
	path := Path(dir)
	fd, err := openDir(unix.AT_FDCWD, path)
	if errors.Is(err, unix.ENOENT) {
		fd, err = makeFolder(dir)
	}
	if err != nil {
		return nil, fmt.Errorf("opening %s: %w", path, err)
	}
	if err := shut(fd); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("making %s private: %w", path, err)
	}
	return &folder{fd, path}, nil
}

// shut makes sure that nobody else can write into a folder: a user that can write there can delete
// any pod.
func shut(fd int) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if !mayOwn(st.Uid, os.Geteuid()) {
		return fmt.Errorf("it belongs to user %d", st.Uid)
	}
	if st.Mode&0o077 == 0 {
		return nil
	}
	return unix.Fchmod(fd, 0o700)
}

// mayOwn reports whether a program of user euid accepts a folder that belongs to user uid.
func mayOwn(uid uint32, euid int) bool { return uid == 0 || int(uid) == euid }

func (f *folder) close() { unix.Close(f.fd) }

// makeFolder does `mkdir -p -m 0700` durably, for the folders below the root.
func makeFolder(dir root.Dir) (fd int, err error) {
	at, err := openPath(string(dir))
	if err != nil {
		return -1, fmt.Errorf("root %s: %w", dir, err)
	}
	below, err := filepath.Rel(string(dir), Path(dir))
	if err != nil {
		unix.Close(at)
		return -1, err
	}
	parts := strings.Split(below, "/")
	for i, name := range parts {
		open := openPathAt // follows symbolic links: an administrator may have moved the folders elsewhere
		if i == len(parts)-1 {
			open = openDir
		}
		next, err := makeDir(at, name, open)
		unix.Close(at)
		if err != nil {
			return -1, err
		}
		at = next
	}
	return at, nil
}

// makeDir opens a folder in another, and makes it if it is missing.
func makeDir(at int, name string, open func(int, string) (int, error)) (fd int, err error) {
	fd, err = open(at, name)
	if !errors.Is(err, unix.ENOENT) {
		return fd, err
	}
	if err := unix.Mkdirat(at, name, 0o700); err != nil && err != unix.EEXIST {
		return -1, fmt.Errorf("making %s: %w", name, err)
	}
	if err := fsync(at); err != nil {
		return -1, fmt.Errorf("syncing the folder of %s: %w", name, err)
	}
	return open(at, name)
}

func openPath(path string) (int, error) { return openPathAt(unix.AT_FDCWD, path) }

func openPathAt(at int, name string) (int, error) {
	return openat(at, name, unix.O_RDONLY|unix.O_DIRECTORY, 0)
}

// openDir opens a folder. A symbolic link to a folder is an error.
func openDir(at int, name string) (int, error) {
	return openat(at, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
}

func openat(at int, name string, flags int, mode uint32) (fd int, err error) {
	err = retry(func() (err error) {
		fd, err = unix.Openat(at, name, flags|unix.O_CLOEXEC, mode)
		return err
	})
	if err != nil {
		return -1, err
	}
	return fd, nil
}

func fsync(fd int) error { return retry(func() error { return unix.Fsync(fd) }) }

// retry calls f again for as long as signals interrupt it.
func retry(f func() error) error {
	for {
		if err := f(); err != unix.EINTR {
			return err
		}
	}
}

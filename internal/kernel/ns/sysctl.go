package ns

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/kernel/linklock"
)

// Sysctl reads a sysctl below net, such as "ipv4/conf/eth0/rp_filter", in the
// calling thread's network namespace (`sysctl net.ipv4...`): inside Do that is the
// namespace that Do entered, elsewhere the process's own. Names are written with
// slashes, because an interface's name may contain dots. The returned value has no
// trailing newline.
func Sysctl(name string) (string, error) {
	fd, err := openSysctl(name, unix.O_RDONLY)
	return readSysctl(name, fd, err)
}

// SetSysctl writes a sysctl in the calling thread's network namespace (`sysctl
// -w net.NAME=VALUE`). The name has the same form as for Sysctl.
func SetSysctl(name, value string) error {
	fd, err := openSysctl(name, unix.O_WRONLY)
	return writeSysctl(name, value, fd, err)
}

// Sysctls is an open folder of sysctls below net, such as the folder of a link, "ipv4/conf/eth0". If
// somebody renames the link, the folder ends: from then on Get and Set fail with fs.ErrNotExist, even
// if another link has the name by then.
type Sysctls struct {
	fd     int
	folder string
}

// OpenSysctls opens a folder of sysctls in the calling thread's network namespace. The name
// has the same form as for Sysctl.
func OpenSysctls(folder string) (*Sysctls, error) {
	fd, err := openSysctl(folder, unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return nil, fmt.Errorf("opening sysctls net/%s: %w", folder, err)
	}
	return &Sysctls{fd, folder}, nil
}

// Get reads the sysctl of a name in the folder, as Sysctl does.
func (f *Sysctls) Get(name string) (string, error) {
	fd, err := f.open(name, unix.O_RDONLY)
	return readSysctl(filepath.Join(f.folder, name), fd, err)
}

// Set writes the sysctl of a name in the folder, as SetSysctl does.
func (f *Sysctls) Set(name, value string) error {
	fd, err := f.open(name, unix.O_WRONLY)
	return writeSysctl(filepath.Join(f.folder, name), value, fd, err)
}

func (f *Sysctls) open(name string, flags int) (int, error) {
	fd, err := unix.Openat(f.fd, name, flags|unix.O_CLOEXEC, 0)
	return fd, os.NewSyscallError("openat", err)
}

// Close closes the folder.
func (f *Sysctls) Close() { unix.Close(f.fd) }

// readSysctl reads a sysctl's file and closes it, unless opening it failed.
func readSysctl(name string, fd int, err error) (string, error) {
	if err != nil {
		return "", fmt.Errorf("reading sysctl net/%s: %w", name, err)
	}
	defer unix.Close(fd)
	value := make([]byte, 512) // enough for the longest values, which are lists of names
	n, err := unix.Read(fd, value)
	if err == nil && n == len(value) {
		err = io.ErrShortBuffer
	}
	if err != nil {
		return "", fmt.Errorf("reading sysctl net/%s: %w", name, os.NewSyscallError("read", err))
	}
	return strings.TrimSuffix(string(value[:n]), "\n"), nil
}

// writeSysctl writes a sysctl's file and closes it, unless opening it failed. It does without os.File,
// whose poller would double the cost: an ADD writes several sysctls.
func writeSysctl(name, value string, fd int, err error) error {
	if err != nil {
		return fmt.Errorf("setting sysctl net/%s to %q: %w", name, value, err)
	}
	defer unix.Close(fd)
	if err := linklock.Do(func() error {
		_, err := unix.Write(fd, []byte(value)) // the kernel refuses a bad value here
		return err
	}); err != nil {
		return fmt.Errorf("setting sysctl net/%s to %q: %w", name, value, os.NewSyscallError("write", err))
	}
	return nil
}

// openSysctl opens the file of a sysctl below net. The folder sys/net of a proc file
// system shows each thread the network namespace that the thread is in (proc(5)).
func openSysctl(name string, flags int) (int, error) {
	if !filepath.IsLocal(name) {
		return -1, fmt.Errorf("the name leads out of net")
	}
	proc := ownProc.use()
	defer proc.done()
	fd, err := unix.Openat(proc.fd, filepath.Join(proc.path, "sys/net", name), flags|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, os.NewSyscallError("open", err)
	}
	return fd, nil
}

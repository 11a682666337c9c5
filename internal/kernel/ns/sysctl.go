package ns

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Sysctl reads a value such as "ipv4/conf/eth0/rp_filter", below net, in the
// calling thread's network namespace (`sysctl net.ipv4...`): use it inside Do,
// or outside for the process's own. Names have slashes, because an interface's
// name may have dots. The value comes without its trailing newline.
func Sysctl(name string) (string, error) {
	fd, err := openSysctl(name, unix.O_RDONLY)
	if err != nil {
		return "", fmt.Errorf("reading sysctl net/%s: %w", name, err)
	}
	defer unix.Close(fd)
	value := make([]byte, 512) // the kernel's lists of names are the longest
	n, err := unix.Read(fd, value)
	if err == nil && n == len(value) {
		err = io.ErrShortBuffer
	}
	if err != nil {
		return "", fmt.Errorf("reading sysctl net/%s: %w", name, os.NewSyscallError("read", err))
	}
	return strings.TrimSuffix(string(value[:n]), "\n"), nil
}

// SetSysctl writes a value in the calling thread's network namespace (`sysctl
// -w net.NAME=VALUE`), with names as Sysctl has them.
func SetSysctl(name, value string) error {
	// Not by os.File, whose poller costs as much again: an ADD writes several.
	fd, err := openSysctl(name, unix.O_WRONLY)
	if err != nil {
		return fmt.Errorf("setting sysctl net/%s to %q: %w", name, value, err)
	}
	defer unix.Close(fd)
	if _, err := unix.Write(fd, []byte(value)); err != nil { // proc_handler answers at write
		return fmt.Errorf("setting sysctl net/%s to %q: %w", name, value, os.NewSyscallError("write", err))
	}
	return nil
}

// HasLink reports whether a link of that name is in the calling thread's network
// namespace, by its folder of sysctls: for a tenth of what a netlink socket costs. One
// that cannot carry IPv4, for its MTU is below 68 bytes, has none.
func HasLink(name string) bool {
	if name == "all" || name == "default" || !filepath.IsLocal(name) {
		return false // folders that are no link's, nor can be (net/sysctl_net.c)
	}
	proc := ownProc.use()
	defer proc.done()
	return unix.Faccessat(proc.fd, filepath.Join(proc.path, "sys/net/ipv4/conf", name), unix.F_OK, 0) == nil
}

// openSysctl opens the file of a sysctl below net. A proc file system's sys/net
// leads to the network namespace of the thread that opens it (proc(5)).
func openSysctl(name string, flags int) (int, error) {
	if !filepath.IsLocal(name) {
		return -1, fmt.Errorf("the name leads elsewhere")
	}
	proc := ownProc.use()
	defer proc.done()
	fd, err := unix.Openat(proc.fd, filepath.Join(proc.path, "sys/net", name), flags|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, os.NewSyscallError("open", err)
	}
	return fd, nil
}

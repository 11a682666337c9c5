package ns

import (
	"fmt"
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
	path, err := sysctlPath(name)
	if err != nil {
		return "", err
	}
	value, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("reading sysctl net/%s: %w", name, err)
	}
	return strings.TrimSuffix(string(value), "\n"), nil
}

// SetSysctl writes a value in the calling thread's network namespace (`sysctl
// -w net.NAME=VALUE`), with names as Sysctl has them.
func SetSysctl(name, value string) error {
	path, err := sysctlPath(name)
	if err != nil {
		return err
	}
	// Not by os.File, whose poller costs as much again: an ADD writes several.
	fd, err := unix.Open(path, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("setting sysctl net/%s to %q: %w", name, value, os.NewSyscallError("open", err))
	}
	defer unix.Close(fd)
	if _, err := unix.Write(fd, []byte(value)); err != nil { // proc_handler answers at write
		return fmt.Errorf("setting sysctl net/%s to %q: %w", name, value, os.NewSyscallError("write", err))
	}
	return nil
}

// sysctlPath returns the file of a sysctl below net. /proc/sys/net leads to
// the network namespace of the thread that opens it (proc(5)).
func sysctlPath(name string) (string, error) {
	if !filepath.IsLocal(name) {
		return "", fmt.Errorf("sysctl net/%s: the name leads elsewhere", name)
	}
	return filepath.Join("/proc/sys/net", name), nil
}

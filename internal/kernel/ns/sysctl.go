package ns

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
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
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("setting sysctl net/%s to %q: %w", name, value, err)
	}
	defer f.Close()
	if _, err := f.WriteString(value); err != nil { // proc_handler answers at write
		return fmt.Errorf("setting sysctl net/%s to %q: %w", name, value, err)
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

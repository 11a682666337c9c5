package oracle

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// sysctlRoot has the sysctls of the network namespace of the thread that reads it.
const sysctlRoot = "/proc/sys/net"

// derived are the last parts of the names of sysctls that are only another view: an IPv6 MTU is that of its link.
var derived = []string{"mtu"}

// allSysctls is `sysctl net`: each sysctl of the network namespace that somebody in it can write. It leaves out those that only can be
// read, which are the machine's (nf_conntrack_max) or count (nf_conntrack_count), those that only can be written
// (route/flush), and those without a value (a stable_secret that nobody has set).
func allSysctls() ([]string, error) {
	var lines []string
	err := filepath.WalkDir(sysctlRoot, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) { // the sysctls of a link went with the link
			return nil
		}
		if err != nil || d.IsDir() || slices.Contains(derived, d.Name()) {
			return err
		}
		if info, err := d.Info(); err != nil || info.Mode()&0o600 != 0o600 {
			return nil
		}
		value, err := os.ReadFile(path)
		if err != nil {
			return nil
		}
		lines = append(lines, fmt.Sprintf("sysctl %s = %s", strings.TrimPrefix(path, sysctlRoot+"/"), strings.Join(strings.Fields(string(value)), " ")))
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("listing sysctls: %w", err)
	}
	return lines, nil
}

package ns

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// initialPIDs is what /proc/self/ns/pid leads to for processes that see all others (PROC_PID_INIT_INO of include/linux/proc_ns.h).
const initialPIDs = "pid:[4026531836]"

// Visible returns an error unless nothing at a path says that nothing is there on the node: a process in a container may not see what the
// node's runtime sees.
func Visible(path string) error {
	if strings.HasPrefix(path, "/proc/") {
		if own, err := os.Readlink("/proc/self/ns/pid"); err != nil || own != initialPIDs {
			return fmt.Errorf("the agent sees no network namespace at %s, and it does not see the node's processes: run berthd where it does", path)
		}
		return nil
	}
	if _, err := os.Stat(filepath.Dir(path)); err != nil {
		return fmt.Errorf("nobody can tell whether the pod's network namespace, %s, is gone, because its folder is not there, either: %w", path, err)
	}
	return nil
}

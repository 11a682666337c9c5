package programs

import (
	"os"
	"strings"
)

// InitialUser reports whether this process runs as the machine's own root, and not as the
// root of a user namespace.
func InitialUser() bool {
	ids, err := os.ReadFile("/proc/self/uid_map") // inside outside length
	return err == nil && os.Geteuid() == 0 && strings.Join(strings.Fields(string(ids)), " ") == "0 0 4294967295"
}

package root

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Lock returns the path of the file that the agent of an instance locks for as long as it
// lives. The file is not below a root, so that agents on copies of one root lock the same file:
// without the lock, each would undo what the other does. Agents in different network namespaces may
// run at once, so netns, the namespace's inode, is part of the name.
func Lock(instance string, netns uint64) string {
	return fmt.Sprintf("/run/berth-%s-%d.lock", instance, netns)
}

// Locked reports whether somebody has locked a file, and what they wrote down of
// themselves. A process that fails to lock the file because of this look tries again.
func Locked(path string) (who string, locked bool) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return "", false
	}
	defer f.Close()
	if unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB) != unix.EWOULDBLOCK {
		return "", false
	}
	return Holder(f), true
}

// LockedBy returns what an agent wrote down of itself that lives in the network namespace, and whose
// instance's id begins with `instance`; false if there is no such agent.
func LockedBy(instance string, netns uint64) (who string, locked bool) {
	paths, _ := filepath.Glob(Lock(instance+"*", netns)) // Glob fails only for a malformed pattern
	for _, path := range paths {
		if who, locked = Locked(path); locked {
			break
		}
	}
	return who, locked
}

// Holder is what an agent wrote down of itself in a file that it has locked.
func Holder(f *os.File) string {
	who, _ := io.ReadAll(io.LimitReader(f, 4096))
	return strings.TrimSpace(string(who))
}

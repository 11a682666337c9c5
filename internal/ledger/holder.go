package ledger

import (
	"fmt"
	"io/fs"
	"os"
	"strings"
	"syscall"
)

// lockHolder says who has a lock (flock) on a file, as well as it can be
// found out: "berthd (process 123)".
func lockHolder(info fs.FileInfo) string {
	const unknown = "another process"
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return unknown
	}
	raw, err := os.ReadFile("/proc/locks")
	if err != nil {
		return unknown
	}
	pid := flockPID(string(raw), st.Ino)
	if pid == "" {
		return unknown
	}
	comm, err := os.ReadFile("/proc/" + pid + "/comm")
	if err != nil {
		return "process " + pid
	}
	return fmt.Sprintf("%s (process %s)", strings.TrimSpace(string(comm)), pid)
}

// flockPID finds the process with an flock on an inode in the text of
// /proc/locks (proc_locks(5)):
//
//	1: FLOCK  ADVISORY  WRITE 708 08:01:13640 0 EOF
//
// The device there is not always the one that stat gives (btrfs, overlayfs),
// so that the inode alone is compared. Waiting locks have "->" before FLOCK.
func flockPID(locks string, ino uint64) string {
	suffix := fmt.Sprintf(":%d", ino)
	for line := range strings.Lines(locks) {
		f := strings.Fields(line)
		if len(f) >= 6 && f[1] == "FLOCK" && strings.HasSuffix(f[5], suffix) && f[4] != "0" {
			return f[4]
		}
	}
	return ""
}

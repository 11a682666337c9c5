package ledger

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// lockHolder returns the process that has a lock (flock) on a file, as far as it can be
// found out, such as "berthd (process 123)".
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
	pid := flockPID(string(raw), st.Dev, st.Ino)
	if pid == "" {
		return unknown
	}
	comm, err := os.ReadFile("/proc/" + pid + "/comm")
	if err != nil {
		return "process " + pid
	}
	who := fmt.Sprintf("%s (process %s)", strings.TrimSpace(string(comm)), pid)
	if hasEnded(pid) {
		who += ", which has ended, but a thread of it still waits in the kernel: for a disk, or for a program in a pod that uses a deleted interface; " +
			"in the latter case, end the programs of pods that were deleted or broken lately"
	}
	return who
}

// hasEnded reports whether a process is a zombie. A zombie can have locks: a thread that waits in the
// kernel, and that no signal can end, keeps the process's files open (rtnl.Conn.Delete).
func hasEnded(pid string) bool {
	stat, err := os.ReadFile("/proc/" + pid + "/stat")
	return err == nil && strings.HasPrefix(string(stat[bytes.LastIndexByte(stat, ')')+1:]), " Z")
}

// flockPID finds the process with an flock on an inode in the text of
// /proc/locks (proc_locks(5)):
//
//	1: FLOCK  ADVISORY  WRITE 708 08:01:13640 0 EOF
//
// The device in /proc/locks is not always the one of stat(2) (btrfs, overlayfs). If no line
// has stat's device, flockPID goes by the inode alone. It ignores waiting locks, which have
// "->" before FLOCK.
func flockPID(locks string, dev, ino uint64) string {
	exact := fmt.Sprintf("%02x:%02x:%d", unix.Major(dev), unix.Minor(dev), ino)
	suffix := fmt.Sprintf(":%d", ino)
	likely := ""
	for line := range strings.Lines(locks) {
		f := strings.Fields(line)
		if len(f) < 6 || f[1] != "FLOCK" || f[4] == "0" {
			continue
		}
		if f[5] == exact {
			return f[4]
		}
		if likely == "" && strings.HasSuffix(f[5], suffix) {
			likely = f[4]
		}
	}
	return likely
}

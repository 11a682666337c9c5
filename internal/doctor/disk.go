package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// How much room there should be. The ledger of 5,000 pods has some MB; the spare files of the
// queue are made in advance.
const (
	little, tooLittle       = 256 << 20, 16 << 20 // bytes
	fewInodes, tooFewInodes = 4096, 300
)

// lookSpace asks how much room the state folder has.
func lookSpace(_ context.Context, n *Node) Finding {
	dir, fs, err := statfs(n.Root.State())
	if err != nil {
		return unknown(err)
	}
	return judgeSpace(dir, int64(fs.Bavail)*fs.Bsize, int64(fs.Ffree), fs.Files == 0)
}

// judgeSpace judges how many bytes and inodes are free. Some file systems do not count inodes.
func judgeSpace(dir string, free, inodes int64, uncounted bool) Finding {
	seen := fmt.Sprintf("%d MiB and %d inodes free in %s", free>>20, inodes, dir)
	if uncounted {
		seen, inodes = fmt.Sprintf("%d MiB free in %s", free>>20, dir), fewInodes
	}
	f := Finding{Warn, seen, fmt.Sprintf("make room: du -xh %s | sort -h | tail; df -i %s", dir, dir)}
	switch {
	case free < tooLittle || inodes < tooFewInodes:
		f.Verdict = Bad
	case free >= little && inodes >= fewInodes:
		return ok("%s", seen)
	}
	return f
}

const (
	syncs    = 7
	slowSync = 10 * time.Millisecond
)

// lookSync times what a commit of the ledger waits for: a small write, and fdatasync. It writes
// to a file without a name, which is gone when it is closed.
func lookSync(_ context.Context, n *Node) Finding {
	dir, err := nearest(n.Root.State())
	if err != nil {
		return unknown(err)
	}
	fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_WRONLY|unix.O_CLOEXEC, 0o600)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EISDIR) {
		return Finding{Verdict: Unknown, Seen: "the file system of " + dir + " has no files without a name (O_TMPFILE), and doctor leaves no others"}
	}
	if err != nil {
		return unknown(&fs.PathError{Op: "opening a file without a name in", Path: dir, Err: err})
	}
	defer unix.Close(fd)
	page := make([]byte, 4096)
	var times []time.Duration
	for range syncs {
		begun := time.Now()
		if _, err := unix.Write(fd, page); err != nil {
			return unknown(os.NewSyscallError("write", err))
		}
		if err := unix.Fdatasync(fd); err != nil {
			return unknown(os.NewSyscallError("fdatasync", err))
		}
		times = append(times, time.Since(begun))
	}
	return judgeSync(dir, times)
}

// judgeSync judges how long writes with fdatasync took.
func judgeSync(dir string, times []time.Duration) Finding {
	slices.Sort(times)
	median := times[len(times)/2]
	seen := fmt.Sprintf("fdatasync in %s takes %s (median of %d)", dir, median.Round(10*time.Microsecond), len(times))
	if median > slowSync {
		return Finding{Warn, seen, "move " + dir + " to a faster disk, or see who keeps this one busy: iostat -x 1"}
	}
	return ok("%s", seen)
}

// nearest returns a folder or, if it does not exist, the nearest existing folder above it. The
// agent will create the missing folder there.
func nearest(dir string) (string, error) {
	for {
		info, err := os.Stat(dir)
		switch {
		case err == nil && info.IsDir():
			return dir, nil
		case err == nil:
			return "", fmt.Errorf("%s is not a directory", dir)
		case !errors.Is(err, fs.ErrNotExist) || dir == filepath.Dir(dir):
			return "", err
		}
		dir = filepath.Dir(dir)
	}
}

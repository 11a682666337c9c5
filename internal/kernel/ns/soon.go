package ns

import (
	"errors"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/patience"
)

// ErrHangs says that a path's file system does not answer.
var ErrHangs = patience.ErrHangs

// limit is how long OpenSoon waits for a path; a path that does not hang opens within
// microseconds. A caller that waits may hold up others, such as pods that are to be cut
// off next. So OpenSoon waits only for brief while another path in the same folder hangs:
// of many paths that hang in one folder, only the first costs limit.
const (
	limit = time.Second
	brief = 50 * time.Millisecond
)

var openings patience.Calls

// OpenSoon is Open with a time limit: if the path has not opened by then the error is ErrHangs. Open
// itself would wait for ever for a file system that hangs.
func OpenSoon(path string) (*Netns, error) {
	n, err := openNow(path)
	if err != errMayHang {
		return n, about(path, err)
	}
	n, err = patience.Call(&openings, path, limitOf(path),
		func() (*Netns, error) { return Open(path) }, func(n *Netns) { n.Close() })
	if err == patience.ErrHangs {
		return nil, about(path, err)
	}
	return n, err
}

func limitOf(path string) time.Duration {
	folder := filepath.Dir(path)
	if openings.Any(limit, func(other string) bool { return other != path && filepath.Dir(other) == folder }) {
		return brief
	}
	return limit
}

// errMayHang says that opening a path may mean asking a server.
var errMayHang = errors.New("its file system may not answer at once")

// kernels are the folders in which runtimes and `ip netns` keep namespaces.
var kernels = []string{"/run/netns/", "/var/run/netns/"}

// openNow opens the usual paths, /proc/PID/ns/net and what is mounted in one of the
// folders of kernels, without a goroutine and a time limit, which would cost an ADD 0.1 ms.
// openNow asks no server, whatever is mounted on the path, on the path's folder or on a folder above
// that. If openNow cannot open the path that way the error is errMayHang.
func openNow(path string) (*Netns, error) {
	at, err := findNow(path)
	if err == unix.ENOENT {
		return nil, ErrGone
	}
	if err != nil {
		return nil, errMayHang
	}
	defer unix.Close(at)
	own, err := device()
	if err != nil {
		return nil, errMayHang
	}
	var st unix.Statx_t
	err = unix.Statx(at, "", unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC, 0, &st)
	if err != nil || unix.Mkdev(st.Dev_major, st.Dev_minor) != own {
		return nil, errMayHang
	}
	return reopen(at, path)
}

// findNow opens by O_PATH what a usual path leads to. An error other than ENOENT says nothing about the
// path.
func findNow(path string) (int, error) {
	if rest, ok := strings.CutPrefix(path, "/proc/"); ok {
		process, ok := strings.CutSuffix(rest, "/ns/net")
		if !ok || process == "" || strings.Contains(process, "/") {
			return -1, errMayHang
		}
		return ofProcess(process)
	}
	for _, folder := range kernels {
		if name, ok := strings.CutPrefix(path, folder); ok && name != "" && !strings.Contains(name, "/") {
			return inFolder(folder, name)
		}
	}
	return -1, errMayHang
}

// ofProcess opens the namespace of a process. Nothing may be mounted on the way from /proc to the
// folder ns. The kernel follows the link net in that folder itself.
func ofProcess(process string) (int, error) {
	proc, err := procFolder()
	if err != nil {
		return -1, err
	}
	folder, err := openat2(proc, process+"/ns", unix.O_DIRECTORY, unix.RESOLVE_NO_XDEV)
	if err != nil {
		return -1, err
	}
	defer unix.Close(folder)
	return openat2(folder, "net", 0, 0)
}

// inFolder opens the file of a name in a folder, from the kernel's memory alone: the kernel asks the
// folder's own file system nothing (RESOLVE_CACHED, Linux 5.12). A mount point always is in the
// kernel's memory.
func inFolder(folder, name string) (int, error) {
	dir, err := openat2(unix.AT_FDCWD, folder, unix.O_DIRECTORY, 0)
	if err != nil {
		return -1, err
	}
	defer unix.Close(dir)
	return openat2(dir, name, unix.O_NOFOLLOW, resolveCached)
}

// resolveCached is RESOLVE_CACHED of include/uapi/linux/openat2.h.
const resolveCached = 0x20

// openat2 opens by O_PATH.
func openat2(dir int, path string, flags, resolve uint64) (int, error) {
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC | flags, Resolve: resolve}
	return retry(func() (int, error) { return unix.Openat2(dir, path, &how) })
}

// procFolder returns /proc, open by O_PATH.
var procFolder = sync.OnceValues(func() (int, error) {
	return openat2(unix.AT_FDCWD, "/proc", unix.O_DIRECTORY, 0)
})

// device returns the device number of the namespace file system. A machine has only one.
var device = sync.OnceValues(func() (uint64, error) {
	var st unix.Stat_t
	err := unix.Stat("/proc/self/ns/net", &st)
	return st.Dev, err
})

package ns

import (
	"fmt"
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

// OpenSoon is Open with a time limit: a path that has not opened by then is ErrHangs.
// Open itself would wait for ever for a file system that hangs.
func OpenSoon(path string) (*Netns, error) {
	if prompt(path) {
		return Open(path)
	}
	n, err := patience.Call(&openings, path, limitOf(path),
		func() (*Netns, error) { return Open(path) }, func(n *Netns) { n.Close() })
	if err == patience.ErrHangs {
		return nil, fmt.Errorf("opening network namespace %q: %w", path, err)
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

// kernels are the folders in which runtimes and `ip netns` keep namespaces. No server
// that could hang stands behind the folders themselves. One may stand behind a file
// system that is mounted on an entry in them.
var kernels = []string{"/run/netns/", "/var/run/netns/"}

// prompt reports whether opening a path cannot hang: the path is /proc/PID/ns/net, or a
// namespace that is mounted in one of the folders of kernels. For these OpenSoon does
// without a goroutine and a time limit, which would cost an ADD 0.1 ms.
func prompt(path string) bool {
	if rest, ok := strings.CutPrefix(path, "/proc/"); ok {
		process, ok := strings.CutSuffix(rest, "/ns/net")
		return ok && !strings.Contains(process, "/")
	}
	for _, folder := range kernels {
		if name, ok := strings.CutPrefix(path, folder); ok && !strings.Contains(name, "/") {
			return mounted(path)
		}
	}
	return false
}

// mounted reports whether a path leads to the namespace file system, or to nothing at
// all. It follows no symbolic link, and makes no call that the kernel would have to pass
// on to a file server.
func mounted(path string) bool {
	at, err := retry(func() (int, error) { return unix.Open(path, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0) })
	if err != nil {
		return err == unix.ENOENT
	}
	defer unix.Close(at)
	own, err := device()
	if err != nil {
		return false
	}
	var st unix.Statx_t
	err = unix.Statx(at, "", unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC, 0, &st)
	return err == nil && unix.Mkdev(st.Dev_major, st.Dev_minor) == own
}

// device returns the device number of the namespace file system. A machine has only one.
var device = sync.OnceValues(func() (uint64, error) {
	var st unix.Stat_t
	err := unix.Stat("/proc/self/ns/net", &st)
	return st.Dev, err
})

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

// ErrHangs says that nobody answers for a path.
var ErrHangs = patience.ErrHangs

// limit is how long a path may take to be opened, which otherwise takes microseconds.
// Whoever waits may keep others, such as those who are cut off next. So a path has no more
// than brief while another one in its folder hangs: of many, the first alone is waited for.
const (
	limit = time.Second
	brief = 50 * time.Millisecond
)

var openings patience.Calls

// OpenSoon is Open, which a file system that hangs would keep for ever.
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

// kernels are the folders in which runtimes and `ip netns` keep namespaces: no server
// stands behind them that could hang. It may behind what is in them.
var kernels = []string{"/run/netns/", "/var/run/netns/"}

// prompt reports whether no server can stand behind a path: it is a process's own
// namespace, or one that is mounted in the folders for that. A goroutine for each of
// these would cost an ADD 0.1 ms.
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

// mounted reports whether a path is of the namespace file system, or of no file system.
// It follows no link, and asks for nothing that a server would have to be asked for.
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

// device returns the device of the namespace file system, of which there is one.
var device = sync.OnceValues(func() (uint64, error) {
	var st unix.Stat_t
	err := unix.Stat("/proc/self/ns/net", &st)
	return st.Dev, err
})

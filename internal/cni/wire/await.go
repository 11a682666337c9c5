package wire

import (
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/boottime"
	"github.com/berth-net/berth/internal/patience"
	"github.com/berth-net/berth/internal/root"
)

// The pause between two tries to connect to an agent that is away, at first and at most.
const (
	soonest = time.Millisecond
	latest  = 50 * time.Millisecond
)

// await connects to the agent of a root directory. If no agent listens there, await tries
// again until r.Await, because the agent may be restarting. It watches no folder by inotify: a
// user has 128 watchers by default, which the kubelet and all other programs of root share,
// and a burst would have as many plugins wait. If an agent listens, await costs nothing.
func await(dir root.Dir, r Request, sleep func(time.Duration)) (*conn, error) {
	for n := 1; ; n++ {
		c, err := dial(dir, r.Deadline)
		if err == nil || r.Await == 0 || !mayCome(dir, err) {
			return c, err
		}
		left := time.Duration(min(r.Await, r.Deadline) - boottime.Now())
		if left <= 0 {
			return nil, err
		}
		sleep(min(left, patience.Backoff(soonest, latest, n)))
	}
}

// mayCome reports whether an agent may soon listen where dial has found none. An agent does
// not make its root: a root that is not there is misspelt.
func mayCome(dir root.Dir, err error) bool {
	if !errors.Is(err, unix.ECONNREFUSED) && !errors.Is(err, unix.ENOENT) {
		return false
	}
	_, err = os.Stat(string(dir))
	return err == nil
}

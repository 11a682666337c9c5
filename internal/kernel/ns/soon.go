package ns

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"
)

// ErrHangs says that nobody answers for a path.
var ErrHangs = errors.New("its file system does not answer")

// patience is how long a path may take to be opened, which otherwise takes
// microseconds. Whoever waits may keep others, such as those who are cut off next.
const patience = time.Second

// hanging has the paths that have taken longer, until they have been opened: nobody
// else waits for them, nor spends a thread on them.
var hanging sync.Map

// kernels are the folders in which runtimes and `ip netns` keep namespaces: no server
// stands behind them that could hang. A goroutine for each path there would cost an
// ADD 0.1 ms.
var kernels = []string{"/run/netns/", "/var/run/netns/", "/proc/"}

// openSoon is Open, which a file system that hangs would keep for ever.
func openSoon(path string) (*Netns, error) {
	for _, folder := range kernels {
		if strings.HasPrefix(path, folder) {
			return Open(path)
		}
	}
	late := fmt.Errorf("opening network namespace %q: %w", path, ErrHangs)
	if _, hangs := hanging.Load(path); hangs {
		return nil, late
	}
	o := &opening{done: make(chan struct{})}
	go o.open(path)
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-o.done:
		return o.netns, o.err
	case <-timer.C:
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.ended {
		return o.netns, o.err
	}
	o.left = true
	hanging.Store(path, nil)
	return nil, late
}

// opening is one call of Open, on a goroutine of its own.
type opening struct {
	done  chan struct{}
	netns *Netns
	err   error

	mu          sync.Mutex
	ended, left bool // whether it has ended, and whether nobody waits for it
}

func (o *opening) open(path string) {
	o.netns, o.err = Open(path)
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ended = true
	if o.left {
		hanging.Delete(path)
		if o.err == nil {
			o.netns.Close()
		}
	}
	close(o.done)
}

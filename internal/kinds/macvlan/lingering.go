package macvlan

import (
	"fmt"
	"sync"

	"github.com/berth-net/berth/internal/kernel"
	"github.com/berth-net/berth/internal/kernel/ns"
)

// mostLingering is how many deletions of one pod's macvlans the kernel may have left unanswered before Acquire makes
// no further macvlan for the pod. Each keeps a thread for as long as a program in the pod likes.
const mostLingering = 4

// lingering counts the deletions that the kernel does not answer because a program in a pod uses the deleted
// macvlan (rtnl.Conn.Delete).
type lingering struct {
	mu   sync.Mutex
	pods map[ns.Ref]int // by the namespaces' identities, without their paths
}

func identity(r ns.Ref) ns.Ref { return ns.Ref{Dev: r.Dev, Ino: r.Ino, ID: r.ID} }

// count counts one deletion until the kernel has answered; nil: it has.
func (l *lingering) count(answered <-chan struct{}, pod ns.Ref) {
	if answered == nil {
		return
	}
	add := func(n int) {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.pods == nil {
			l.pods = map[ns.Ref]int{}
		}
		if l.pods[identity(pod)] += n; l.pods[identity(pod)] == 0 {
			delete(l.pods, identity(pod))
		}
	}
	add(1)
	go func() {
		<-answered
		add(-1)
	}()
}

// check returns an error of class kernel.ErrBusy if a pod may not have one more macvlan.
func (l *lingering) check(pod ns.Ref) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n := l.pods[identity(pod)]; n >= mostLingering {
		return kernel.As(kernel.ErrBusy, fmt.Errorf("programs in the pod still use macvlans that are deleted, so that the kernel cannot let them go (%d deletions)", n))
	}
	return nil
}

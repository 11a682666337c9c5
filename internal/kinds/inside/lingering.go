package inside

import (
	"fmt"
	"sync"

	"github.com/berth-net/berth/internal/kernel"
	"github.com/berth-net/berth/internal/kernel/ns"
)

// mostLingering is how many deletions of one pod's interfaces the kernel may have left unanswered before Acquire makes
// no further one for the pod. Each keeps a thread for as long as a program in the pod likes.
const mostLingering = 4

// Lingering counts the deletions that the kernel does not answer because a program in a pod uses the deleted
// interface (rtnl.Conn.Delete).
type Lingering struct {
	mu   sync.Mutex
	pods map[ns.Ref]int // by the namespaces' identities, without their paths
}

func identity(r ns.Ref) ns.Ref { return ns.Ref{Dev: r.Dev, Ino: r.Ino, ID: r.ID} }

// Count counts one deletion until the kernel has answered; nil: it has.
func (l *Lingering) Count(answered <-chan struct{}, pod ns.Ref) {
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

// Check returns an error of class kernel.ErrBusy if a pod may not have one more interface.
func (l *Lingering) Check(pod ns.Ref) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n := l.pods[identity(pod)]; n >= mostLingering {
		return kernel.As(kernel.ErrBusy, fmt.Errorf("programs in the pod still use interfaces that are deleted, so that the kernel cannot let them go (%d deletions)", n))
	}
	return nil
}

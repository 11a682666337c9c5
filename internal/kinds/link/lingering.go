package link

import (
	"errors"
	"fmt"
	"sync"

	"github.com/berth-net/berth/internal/kernel"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/kernel/rtnl"
)

// mostLingering is how many deletions of one pod's links the kernel may have left unanswered before take
// makes no further link for the pod. Each keeps a thread and one of rtnl.Conn's deletions for as long as a
// program in the pod likes: without a bound, a pod that gets link after link could use up all of them.
const mostLingering = 4

// lingering counts the deletions that the kernel does not answer because a program in a pod uses the
// deleted link (rtnl.Conn.Delete).
type lingering struct {
	mu   sync.Mutex
	pods map[ns.Ref]int // by the namespaces' identities (identity)
}

// count counts one deletion for each pod until the kernel has answered; nil: it has. One of the specs' pods
// keeps the kernel waiting, and nobody knows which one.
func (l *lingering) count(answered <-chan struct{}, specs ...*Spec) {
	if answered == nil {
		return
	}
	pods := map[ns.Ref]bool{}
	for _, s := range specs {
		pods[identity(s.Netns)] = true
	}
	add := func(n int) {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.pods == nil {
			l.pods = map[ns.Ref]int{}
		}
		for pod := range pods {
			if l.pods[pod] += n; l.pods[pod] == 0 {
				delete(l.pods, pod)
			}
		}
	}
	add(1)
	go func() {
		<-answered
		add(-1)
	}()
}

// of returns how many deletions of a pod's links the kernel does not answer.
func (l *lingering) of(s *Spec) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.pods[identity(s.Netns)]
}

// identity returns a namespace without the path that led to it. The kernel gives the inode of a namespace
// that has ended to another one, while programs elsewhere still use the ended pod's interfaces. Where the
// kernel tells no ID, the next pod with that inode is taken for the ended one.
func identity(r ns.Ref) ns.Ref { return ns.Ref{Dev: r.Dev, Ino: r.Ino, ID: r.ID} }

// lingers returns an error of class kernel.ErrBusy if take would have to make a link for a pod that may
// not have one more (mostLingering), or a link whose index is not free yet (memory.leaves).
func (l *Links) lingers(s *Spec) error {
	n := l.lingering.of(s)
	if n < mostLingering && !l.memory.waits(s.Name) {
		return nil
	}
	if link, err := l.locate(s); err == nil && link.Group != l.groups.Coming() {
		return nil
	}
	return stillUsed(n)
}

func stillUsed(deletions int) error {
	return kernel.As(kernel.ErrBusy, fmt.Errorf("programs in the pod still use interfaces that are deleted, so that the kernel cannot let them go (%d deletions)", deletions))
}

// delete deletes a half-made link by its index. It succeeds if no link has the index.
func (l *Links) delete(s *Spec, index int) error {
	answered, err := l.conn.Delete(rtnl.DelLinkAt(index), index)
	if answered != nil {
		l.memory.leaves(s.Name, answered)
		l.lingering.count(answered, s)
	}
	return ignoreGone(err)
}

func ignoreGone(err error) error {
	if errors.Is(err, kernel.ErrNotFound) {
		return nil
	}
	return err
}

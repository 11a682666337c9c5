package agent

import (
	"os"
	"sync"

	"github.com/berth-net/berth/internal/deletions"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/node"
)

// fakeMonitor hears what happens on a node in memory, as rtnl.Monitor does.
type fakeMonitor struct {
	*fakeKernel
	heard  chan rtnl.News
	closed chan struct{}
	once   sync.Once
}

// listen begins to hear.
func (k *fakeKernel) listen() (node.Monitor, error) {
	m := &fakeMonitor{fakeKernel: k, heard: make(chan rtnl.News, 64), closed: make(chan struct{})}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.monitor = m
	return m, nil
}

func (m *fakeMonitor) Next() ([]rtnl.News, error) {
	select {
	case n := <-m.heard:
		return []rtnl.News{n}, nil
	case <-m.closed:
		return nil, os.ErrClosed
	}
}

func (m *fakeMonitor) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.fakeNode.monitor == m {
		m.fakeNode.monitor = nil
	}
	m.once.Do(func() { close(m.closed) })
	return nil
}

// tell lets who listens hear of a change: of live links, of the end of any, and
// of routes. What there is no room for is lost. w.mu is held.
func (w *fakeNode) tell(n rtnl.News) {
	m := w.monitor
	if m == nil || n.Change != rtnl.RouteGone && n.Change != rtnl.LinkGone && n.Link.Group != m.groups.Live() {
		return
	}
	select {
	case m.heard <- n:
	default:
		select {
		case <-m.heard:
		default:
		}
		m.heard <- rtnl.News{Change: rtnl.Lost}
	}
}

// onNotice arranges for a call whenever something is put into the queue.
func (w *fakeNode) onNotice(_ *deletions.Queue, changed func()) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.noticed = changed
	return nil
}

// notice tells who watches the queue.
func (w *fakeNode) notice() {
	w.mu.Lock()
	changed := w.noticed
	w.mu.Unlock()
	if changed != nil {
		changed()
	}
}

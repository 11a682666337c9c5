package nodetest

import (
	"os"
	"sync"

	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/node"
)

// monitor hears of changes on a node in memory, as rtnl.Monitor does.
type monitor struct {
	*doors
	heard  chan rtnl.News
	closed chan struct{}
	once   sync.Once
}

// listen returns a monitor that hears of changes from now on.
func (k *doors) listen() (node.Monitor, error) {
	m := &monitor{doors: k, heard: make(chan rtnl.News, 64), closed: make(chan struct{})}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.monitor = m
	return m, nil
}

func (m *monitor) Next() ([]rtnl.News, error) {
	select {
	case n := <-m.heard:
		return []rtnl.News{n}, nil
	case <-m.closed:
		return nil, os.ErrClosed
	}
}

func (m *monitor) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.Node.monitor == m {
		m.Node.monitor = nil
	}
	m.once.Do(func() { close(m.closed) })
	return nil
}

// tell lets the monitor hear of a change, if it is a change of a live link, the end of any
// link, or the end of a route. If there is no room, the monitor loses news, and hears of
// that. The caller holds w.mu.
func (w *Node) tell(n rtnl.News) {
	m := w.monitor
	everybodys := n.Change == rtnl.RouteGone || n.Change == rtnl.LinkGone || n.Change == rtnl.Reshaped || n.Change == rtnl.Repoliced
	if m == nil || !everybodys && n.Link.Group != m.groups.Live() {
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

// onNotice sets the function that Notice calls, in place of the queue's watch.
func (w *Node) onNotice(_ func(func()) error, changed func()) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.noticed = changed
	return nil
}

// Package mend repairs the links, routes and the tunnel of wanted owners as soon as the kernel tells that
// others have changed them. The sweep finds changes that the kernel does not tell.
package mend

import (
	"context"
	"errors"
	"os"
	"strings"
	"time"

	"github.com/berth-net/berth/internal/attachment"
	"github.com/berth-net/berth/internal/daemon"
	"github.com/berth-net/berth/internal/ground"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/ipam"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/mode"
	"github.com/berth-net/berth/internal/node"
	"github.com/berth-net/berth/internal/peers"
	"github.com/berth-net/berth/internal/stamp"
)

// Mend hears of changes, and repairs the owners that they concern.
type Mend struct {
	*daemon.Core
	node  *node.Node
	index *attachment.Index
	modes mode.Modes
	hooks Hooks
	news  node.Monitor // tells of changes; nil: nobody listens
}

// Hooks are what Mend calls besides.
type Hooks struct {
	// Drain does the deletions that wait: a pod that a plugin has cut off must not get its
	// network back.
	Drain func(context.Context) error
	// Sweep looks at everything.
	Sweep func(context.Context)
	// Exposed is called if the table's rules may not have held for a link.
	Exposed func()
	// Forwards reports whether the node has to forward what pods send, and Forward turns
	// forwarding on again.
	Forwards func() bool
	Forward  func(context.Context)
	// Addressed is called if the node may have got an address.
	Addressed func()
}

// New returns a Mend that hears nothing yet.
func New(d *daemon.Core, n *node.Node, x *attachment.Index, ms mode.Modes, h Hooks) *Mend {
	return &Mend{Core: d, node: n, index: x, modes: ms, hooks: h}
}

// Listen begins to hear what others do to links and routes. Keep acts upon what Mend hears. If no
// deletion waits, Listen has the agent begin to list the node's links. If a deletion waits, the list
// comes later: beside it the kernel would do deletions more slowly.
func (m *Mend) Listen(waiting func() (int, error)) {
	if m.node.Monitor == nil {
		return // this node cannot tell of changes: the sweep sees them
	}
	news, err := m.node.Monitor()
	if err != nil {
		m.Log.Warn("could not listen to the kernel: only the sweep mends what others change", "err", err)
		return
	}
	m.news = news
	if n, err := waiting(); err == nil && n == 0 {
		m.node.Links.ListAhead()
	}
}

// Close ends listening. It may be called again.
func (m *Mend) Close() {
	if m.news != nil {
		_ = m.news.Close() // fails if Keep has closed it already
	}
}

// Keep repairs the links and routes of wanted owners when others change them, until ctx
// ends. A link that somebody set down and up again looks as it should, but it has lost its
// routes.
func (m *Mend) Keep(ctx context.Context) {
	if m.news == nil {
		return
	}
	heard := make(chan []rtnl.News)
	go func() {
		defer close(heard)
		for {
			news, err := m.news.Next()
			if errors.Is(err, os.ErrClosed) {
				return
			}
			if err != nil {
				m.Log.Warn("could not read what the kernel says about changes", "err", err)
				news = []rtnl.News{{Change: rtnl.Lost}}
				daemon.Sleep(ctx, time.Second, nil)
			}
			heard <- news
		}
	}()
	defer func() {
		m.Close()
		for range heard { // until the goroutine that listens has ended
		}
	}()
	w := NewWatcher(m)
	defer w.Wait()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case news := <-heard:
			for _, n := range news {
				w.Hear(n, time.Now())
			}
		case <-w.failed:
			w.retry(time.Now())
		case <-timer.C:
			w.Act(ctx, time.Now())
		}
		timer.Reset(w.Next(time.Now()))
	}
}

// mend takes again what an owner lacks, and reports whether it failed. first says that this owner
// was not repaired lately.
func (m *Mend) mend(ctx context.Context, id hold.ID, first bool) (failed bool) {
	if _, ok := m.Ledger.Owner(id); !ok {
		return false
	}
	err := m.Engine.RepairSoon(ctx, append(m.behind(id), id)...)
	failed = err != nil && ctx.Err() == nil
	if failed && first {
		m.Log.Warn("could not mend what others have changed", "owner", id, "err", err)
	}
	return failed
}

// behind returns the owners that need the tunnel, if id is the tunnel's owner: a tunnel that others have deleted
// took with it all that led through it, and the kernel does not tell of IPv4 routes that go with their link.
func (m *Mend) behind(id hold.ID) []hold.ID {
	if tunnel, held := m.Ledger.Holder(peers.TunnelName); !held || id != tunnel {
		return nil
	}
	return m.Ledger.Needers(id)
}

// isTunnel reports whether a link is the instance's tunnel to other nodes.
func (m *Mend) isTunnel(l rtnl.Link) bool { return l.Name == stamp.Tunnel(m.Instance) }

// routeName returns the name by which the ledger finds the owner of a route: a pod's address,
// or a CIDR of a pool.
func routeName(r rtnl.Route) hold.Name {
	if r.Local {
		return ground.StandName(r.Dst.Addr())
	}
	if r.Dst.IsSingleIP() {
		return ipam.Name(r.Dst.Addr())
	}
	return ground.CIDRName(r.Dst)
}

// linkOwner returns the owner of a link: by the link's name or, if somebody has renamed the
// link, by its alias or its second name.
func (m *Mend) linkOwner(l rtnl.Link) (hold.ID, bool) {
	if m.isTunnel(l) {
		return m.Ledger.Holder(peers.TunnelName)
	}
	if id, ok := stamp.LinkID(l.Name); ok && strings.HasPrefix(l.Name, stamp.Links(m.Instance)) {
		return id, true
	}
	if s, ok := stamp.Parse(l.Alias); ok {
		return s.ID, s.Instance == m.Instance
	}
	id, ok := stamp.LinkID(l.Given)
	return id, ok && strings.HasPrefix(l.Given, stamp.Links(m.Instance))
}

// differs reports whether a link is not as its owner has it.
func (m *Mend) differs(id hold.ID, l rtnl.Link) bool {
	e := m.index.Get(id)
	if e == nil {
		return false
	}
	of, err := m.modes.Of(e.Record.Mode)
	return err == nil && of.Differs(e.Owner, l)
}

// reshaped returns the owner of a link whose limit somebody has changed, as n says, and whether the
// limit differs from the owner's. If somebody has renamed the link as well, only the sweep sees the
// change.
func (m *Mend) reshaped(n rtnl.News) (hold.ID, bool) {
	names, err := m.node.Conn.Names(n.Link.Index)
	if err != nil {
		return "", false
	}
	id, ok := m.linkOwner(rtnl.Link{Name: names[0]})
	if !ok {
		return "", false
	}
	e := m.index.Get(id)
	if e == nil {
		return id, false
	}
	want := e.Interface.Ingress
	if n.Change == rtnl.Repoliced {
		want = e.Interface.Egress
	}
	return id, want != n.Shape
}

// podGone reports whether an attachment's pod is gone, and took the link with it. Then DEL or
// the sweep sees to what is left of the attachment.
func (m *Mend) podGone(id hold.ID) bool {
	e := m.index.Get(id)
	if e == nil {
		return true
	}
	_, err := m.node.Identify(e.Record.Netns)
	return errors.Is(err, ns.ErrGone)
}

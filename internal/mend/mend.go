// Package mend puts right at once what others do to the links and routes of those who are
// wanted, as the kernel tells it. The sweep finds what the kernel does not tell.
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
	"github.com/berth-net/berth/internal/stamp"
)

// Mend hears of changes, and mends what they concern.
type Mend struct {
	*daemon.Core
	node  *node.Node
	index *attachment.Index
	modes mode.Modes
	hooks Hooks
	news  node.Monitor // what is listened to; nil: nothing is
}

// Hooks are what is done besides.
type Hooks struct {
	// Drain does the deletions that wait: what a plugin has cut off must not come back.
	Drain func(context.Context) error
	// Sweep looks at everything.
	Sweep func(context.Context)
	// Exposed is told that a link may have been out of the table's rules.
	Exposed func()
	// Taint is told of a hold that was not as it should be.
	Taint func(hold.Hold)
}

// New returns a Mend that hears nothing yet.
func New(d *daemon.Core, n *node.Node, x *attachment.Index, ms mode.Modes, h Hooks) *Mend {
	return &Mend{Core: d, node: n, index: x, modes: ms, hooks: h}
}

// Listen begins to hear what is done to links and routes. What is heard is
// acted upon by Keep. Unless deletions wait, which the kernel would do more
// slowly meanwhile, what links there are is read from now on.
func (m *Mend) Listen(waiting func() (int, error)) {
	if m.node.Monitor == nil {
		return // of a node that cannot tell: the sweep sees it
	}
	news, err := m.node.Monitor()
	if err != nil {
		m.Log.Warn("changes by others are mended by the sweep alone", "err", err)
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
		_ = m.news.Close() // the one that Keep closes is closed already
	}
}

// Keep mends at once what others do to the links and routes of those who are
// wanted, until ctx ends. A link that was set down and up looks well, and has
// lost its routes.
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
				m.Log.Warn("listening to the kernel", "err", err)
				news = []rtnl.News{{Change: rtnl.Lost}}
				daemon.Sleep(ctx, time.Second, nil)
			}
			heard <- news
		}
	}()
	defer func() {
		m.Close()
		for range heard { // until the other has ended
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
		case <-timer.C:
			w.Act(ctx, time.Now())
		}
		timer.Reset(w.Next(time.Now()))
	}
}

// mend takes again what an owner lacks.
func (m *Mend) mend(ctx context.Context, id hold.ID, first bool) {
	o, ok := m.Ledger.Owner(id)
	if !ok {
		return
	}
	err := m.Engine.RepairSoon(ctx, id)
	for _, h := range o.Holds {
		m.hooks.Taint(h)
	}
	if err != nil && ctx.Err() == nil && first {
		m.Log.Warn("mending what others have changed", "owner", id, "err", err)
	}
}

// routeName is the name that the owner of a route of Berth's has.
func routeName(r rtnl.Route) hold.Name {
	if r.Dst.IsSingleIP() {
		return ipam.Name(r.Dst.Addr())
	}
	return ground.CIDRName(r.Dst)
}

// linkOwner returns whose link this is: by its name, or, if it has been
// renamed, by its alias or its second name.
func (m *Mend) linkOwner(l rtnl.Link) (hold.ID, bool) {
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

// podGone reports whether an attachment's link has gone with its pod: what is
// left of it is for DEL, or for the sweep.
func (m *Mend) podGone(id hold.ID) bool {
	e := m.index.Get(id)
	if e == nil {
		return true
	}
	_, err := m.node.Identify(e.Record.Netns)
	return errors.Is(err, ns.ErrGone)
}

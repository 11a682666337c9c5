// Package modes lists the modes of the node agent.
package modes

import (
	"context"
	"net/netip"
	"time"

	"github.com/berth-net/berth/internal/daemon"
	"github.com/berth-net/berth/internal/ground"
	"github.com/berth-net/berth/internal/ipam"
	"github.com/berth-net/berth/internal/kinds/link"
	kind "github.com/berth-net/berth/internal/kinds/macvlan"
	"github.com/berth-net/berth/internal/mode"
	"github.com/berth-net/berth/internal/mode/bridge"
	"github.com/berth-net/berth/internal/mode/chained"
	"github.com/berth-net/berth/internal/mode/delegated"
	"github.com/berth-net/berth/internal/mode/lent"
	"github.com/berth-net/berth/internal/mode/macvlan"
	"github.com/berth-net/berth/internal/mode/routed"
	"github.com/berth-net/berth/internal/node"
	"github.com/berth-net/berth/internal/traffic"
)

// List lists the modes of an agent's attachments. finder is the mode that adopts and finds
// what no ledger knows; it takes attachments of other modes for its own.
func List(d *daemon.Daemon, n *node.Node, g *ground.Ground, t *traffic.Traffic) (finder mode.Finder, all mode.Modes) {
	r := routed.New(options(d, n, g, t))
	lenders := lent.Options{Run: n.Delegates.Run, Check: n.Delegates.Check, Status: n.Delegates.Status, PoolOf: g.PoolOf, Reached: n.Conn.Reached}
	own := lent.New(r, lenders)
	all = mode.Modes{
		own,
		delegated.New(delegated.Options{
			Run: n.Delegates.Run, Check: n.Delegates.Check, GC: n.Delegates.GC, Status: n.Delegates.Status, InfoFile: n.Infos.Files.Path,
		}),
		chained.New(chained.Options{
			Look: n.Shaping.Look, VerifyPod: n.Shaping.VerifyPod, ClaimPorts: t.Ports.Claim, Vacate: t.Ports.Vacate, Lacks: n.Table.Lacks,
		}),
	}
	if n.Macvlans == nil {
		return r, all
	}
	m := macvlan.New(macvlan.Options{
		Instance: n.Instance, Verify: n.Macvlans.VerifyPod, Link: n.Conn.Link, Pools: g, Claim: t.Claim, Unclaim: t.Unclaim,
		Boottime: n.Boottime, Seen: func() []kind.Seen { return n.Macvlans.Survey(link.EachNetns) },
	})
	b := bridge.New(bridge.Options{
		Instance: n.Instance, Ports: n.Bridged, Link: n.Conn.Link, Pools: g, Claim: t.Claim, Unclaim: t.Unclaim,
		Boottime: n.Boottime, EachNetns: link.EachNetns,
	})
	return surveyor{r, m, b}, append(all, lent.New(m, lenders), lent.New(b, lenders))
}

// surveyor is routed as finder, which finds macvlans and ports of bridges, too.
type surveyor struct {
	*routed.Routed
	macvlans *macvlan.Macvlan
	bridged  *bridge.Bridge
}

// Survey finds every attachment of this agent's instance on the node.
func (s surveyor) Survey(epoch string, now time.Time) ([]mode.Found, error) {
	found, err := s.Routed.Survey(epoch, now)
	if err != nil {
		return nil, err
	}
	ports, err := s.bridged.Survey(epoch, now, found) // ahead of the macvlans, of which the pods alone say what they have
	if err != nil {
		return nil, err
	}
	found = append(found, ports...)
	return append(found, s.macvlans.Survey(epoch, now, found)...), nil
}

// Kept returns a function that makes the mode of an attachment whose addresses another owner in the ledger has: they
// are neither claimed when the attachment comes, nor freed when it goes.
func Kept(d *daemon.Daemon, n *node.Node, g *ground.Ground, t *traffic.Traffic) func(ipam.Claim) mode.Mode {
	o := options(d, n, g, t)
	return func(c ipam.Claim) mode.Mode {
		o := o
		o.Claim = func(context.Context, string, []netip.Addr) (ipam.Claim, error) { return c, nil }
		o.Unclaim = func(ipam.Claim) {}
		return routed.New(o)
	}
}

func options(d *daemon.Daemon, n *node.Node, g *ground.Ground, t *traffic.Traffic) routed.Options {
	return routed.Options{
		Instance: n.Instance, Groups: n.Groups, Netns: n.Netns, Boottime: n.Boottime, Warn: d.Log.Warn, Others: d.Others,
		Conn: n.Conn, Links: n.Links, OwnLinks: n.OwnLinks, Ends: n.Ends,
		Pools: g, MTU: g.MTU, Claim: t.Claim, Unclaim: t.Unclaim, Unbar: t.Unbar, ClaimPorts: t.Ports.Claim, Mapped: n.Ports.Mapped, Lacks: n.Table.Lacks,
	}
}

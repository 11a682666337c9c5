// Package modes lists the modes of the node agent.
package modes

import (
	"context"
	"net/netip"

	"github.com/berth-net/berth/internal/daemon"
	"github.com/berth-net/berth/internal/ground"
	"github.com/berth-net/berth/internal/ipam"
	"github.com/berth-net/berth/internal/mode"
	"github.com/berth-net/berth/internal/mode/chained"
	"github.com/berth-net/berth/internal/mode/delegated"
	"github.com/berth-net/berth/internal/mode/routed"
	"github.com/berth-net/berth/internal/node"
	"github.com/berth-net/berth/internal/traffic"
)

// List lists the modes of an agent's attachments. finder is the mode that adopts and finds
// what no ledger knows; it takes attachments of other modes for its own.
func List(d *daemon.Daemon, n *node.Node, g *ground.Ground, t *traffic.Traffic) (finder mode.Finder, all mode.Modes) {
	r := routed.New(options(d, n, g, t))
	return r, mode.Modes{
		r,
		chained.New(chained.Options{
			Look: n.Shaping.Look, VerifyPod: n.Shaping.VerifyPod, ClaimPorts: t.Ports.Claim, Vacate: t.Ports.Vacate, Lacks: n.Table.Lacks,
		}),
		delegated.New(delegated.Options{Run: n.Delegates.Run, Check: n.Delegates.Check}),
	}
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

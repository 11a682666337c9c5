// Package traffic sees to the entries that pods' traffic leaves in the kernel's connection
// tracking. It deletes the entries of an address before the address is given anew (rinse.go,
// claim.go), those that a pod has too many of (trim.go), and those of connections that began
// while the rules did not hold (exposed.go).
package traffic

import (
	"sync/atomic"

	"github.com/berth-net/berth/internal/attachment"
	"github.com/berth-net/berth/internal/daemon"
	"github.com/berth-net/berth/internal/ground"
	"github.com/berth-net/berth/internal/node"
	"github.com/berth-net/berth/internal/turn"
)

// Traffic keeps connection tracking clean.
type Traffic struct {
	*daemon.Core
	ground *ground.Ground
	node   *node.Node
	index  *attachment.Index

	turn      turn.One                 // a rinsing pass that is under way has it
	wake      chan struct{}            // has a token once an address has begun to rest
	failed    atomic.Pointer[rinseErr] // of the last pass; nil: it succeeded
	uncovered chan struct{}            // has a token when connections may have begun without the table
}

// rinseErr is a pass that failed.
type rinseErr struct {
	addrs int
	err   error
}

// New returns the traffic of a node's attachments.
func New(d *daemon.Core, n *node.Node, g *ground.Ground, x *attachment.Index) *Traffic {
	one := func() chan struct{} { return make(chan struct{}, 1) }
	return &Traffic{Core: d, ground: g, node: n, index: x, wake: one(), uncovered: one()}
}

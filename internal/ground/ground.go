// Package ground keeps what all pods of a node rely on: the agent's nftables table, the
// pools' routes, and forwarding. The agent holds the table and the routes as it holds
// everything else: the ledger has an owner for the table, and one for each CIDR of a pool.
// The package also keeps the pools (ipam), because it holds the CIDRs that the pools use.
package ground

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/cni"
	"github.com/berth-net/berth/internal/config"
	"github.com/berth-net/berth/internal/daemon"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/ipam"
	"github.com/berth-net/berth/internal/kernel/nft"
	"github.com/berth-net/berth/internal/kinds/table"
	"github.com/berth-net/berth/internal/node"
	"github.com/berth-net/berth/internal/turn"
)

// Ground keeps what the agent itself holds, and the configuration, which says what the agent holds.
type Ground struct {
	*daemon.Core
	Pools *ipam.IPAM
	node  *node.Node
	Hooks Hooks // must be set before the ledger is opened

	held held // what the ledger has of pools' CIDRs

	config    atomic.Pointer[config.Config]    // the file's, and the pools that the cluster has given to the node
	file      atomic.Pointer[config.Config]    // the file's alone
	given     atomic.Pointer[config.Given]     // what the cluster has given to the node's pods; nil: nothing that the agent knows of
	changed   atomic.Pointer[chan struct{}]    // closed when other pools come into force
	setting   sync.RWMutex                     // a reader that holds it sees Pools and config agree
	began     *config.Config                   // the configuration that the agent was started with
	rules     atomic.Pointer[nft.Ruleset]      // what the table was last told to contain; nil: nothing yet
	hanging   sync.Map                         // what is being done aside, by its name (see aside)
	doubted   chan struct{}                    // has a token while the table may not be what cuts rely on
	lacks     chan struct{}                    // has a token if Hold could not take something
	turn      turn.One                         // whoever has taken it may change which CIDRs are used, or give CIDRs back
	uplinkMTU int                              // the least MTU of the default routes' links, bytes; 0: there are no such routes
	lack      atomic.Pointer[map[string]error] // why Hold could not take something, by pool
	exhausted sync.Map                         // pools in which the last ADD found no address
	overlaps  atomic.Pointer[[]string]         // what Overlaps lists; nil: nobody has looked
	refused   atomic.Pointer[string]           // why the configuration that was read last is not in force; nil: it is
	// masqRefused is why ip-masq-agent's file is not followed; nil: it is, or there is to be none.
	masqRefused atomic.Pointer[string]
	begun       atomic.Bool // Begin has ended

	forwardTurn sync.Mutex      // guards forwarded, and keeps two callers from turning on forwarding at once
	forwarded   map[string]bool // sysctls of forwarding that were on already
}

// Hooks are functions that the ground calls when it sees something.
type Hooks struct {
	// Exposed is told that the table may have been missing or out of force.
	Exposed func()
	// Rests is told that an address has begun to rest.
	Rests func()
	// Others returns what the table has to say of the cluster's other nodes.
	Others func() nft.Others
	// Overhead returns how many bytes of each packet to other nodes' pods the tunnel takes.
	Overhead func() int
	// Left removes host ports that lost agents' tables map to addresses of the pools (ports.ClearLeft).
	Left func() error
	// Cluster chooses pods' pools; nil: the cluster has no pools, or there is no cluster.
	Cluster Cluster
	// Unserved is told of an ADD for a pod that has got no address, of a pool that was chosen, or of none (""). pod is nil if the runtime did
	// not say which pod it is. It must not wait.
	Unserved func(pod *api.Pod, pool string, err error)
	// Counted is told that addresses have become used or free, or that a CIDR was given back.
	Counted func()
	// Tell is told of an event about an owner; typ is the API's type of the event.
	Tell func(typ string, o hold.Owner, kind string, err error)
}

// New returns the ground of a configuration. It takes nothing yet.
func New(d *daemon.Core, n *node.Node, c *config.Config) (*Ground, error) {
	pools, err := ipam.New(c.Pools)
	g := &Ground{
		Core: d, Pools: pools, node: n, began: c,
		doubted: make(chan struct{}, 1), lacks: make(chan struct{}, 1), forwarded: map[string]bool{}, turn: turn.OneAside(),
		Hooks: Hooks{ // for a ground without an agent
			Exposed: func() {}, Counted: func() {}, Rests: func() {}, Left: func() error { return nil }, Tell: func(string, hold.Owner, string, error) {},
			Unserved: func(*api.Pod, string, error) {},
			Others:   func() nft.Others { return nft.Others{} }, Overhead: func() int { return 0 },
		},
	}
	g.config.Store(c)
	g.file.Store(c)
	g.changes()
	return g, err
}

// Config returns the configuration that is in force.
func (g *Ground) Config() *config.Config { return g.config.Load() }

// Hold takes what the agent itself needs and does not have yet. If Hold cannot take something, the
// agent attaches no pods (see Equipped), but still detaches pods.
func (g *Ground) Hold(ctx context.Context) error {
	err := g.holdOne(ctx, nodeRecord{Sort: tableSort}, TableName, &table.Spec{Instance: g.Instance})
	if err == nil {
		err = g.keepTable(ctx)
	}
	var stands sync.WaitGroup
	stands.Go(func() { g.holdStands(ctx) })
	defer stands.Wait()
	all := errors.Join(g.forwarding(), err)
	lack := map[string]error{everyPool: all}
	for pool, err := range g.holdCIDRs(ctx) {
		lack[pool] = err
		all = errors.Join(all, err)
	}
	if ctx.Err() == nil { // otherwise the errors may only say that the time was up
		g.lack.Store(&lack)
	}
	if all != nil {
		select {
		case g.lacks <- struct{}{}:
		default:
		}
	}
	return all
}

// KeepHeld takes again soon what Hold could not take, until ctx ends: until then the node attaches no pods, or none of
// some pools. On a busy node, the kernel may only have been slow. The waits grow up to againMost; a sweep tries
// it, too.
func (g *Ground) KeepHeld(ctx context.Context) {
	for wait := againFirst; ; wait = min(2*wait, againMost) {
		select {
		case <-ctx.Done():
			return
		case <-g.lacks:
		}
		daemon.Sleep(ctx, wait, nil)
		if ctx.Err() != nil {
			return
		}
		if g.Keep(ctx); len(g.lacks) == 0 {
			wait = againFirst / 2
		}
	}
}

const (
	// againFirst and againMost are the first and the longest wait before KeepHeld tries again.
	againFirst = time.Second
	againMost  = time.Minute
	// formerHolder is how long holdOne waits for a former owner to be gone.
	formerHolder = 10 * time.Second
	// Holding is how long holdOne waits until a kind has taken one thing, or looked at
	// it.
	Holding = 5 * time.Second
)

// holdOne takes one thing, unless an owner has it already. In that case holdOne writes rec down
// if the owner has another record, and repairs the owner if the last restore or sweep left a doubt
// (Core.Doubt). If that owner is being released, because its CIDR left the config and is back now,
// for example, holdOne first waits until the owner is gone.
func (g *Ground) holdOne(ctx context.Context, rec nodeRecord, name hold.Name, spec hold.Spec) error {
	if id, held := g.Ledger.Holder(name); held {
		if o, ok := g.Ledger.Owner(id); ok && o.Wanted() {
			if !ofSort(o, rec.Sort) { // such as another node, whose CIDR comes to this node
				return fmt.Errorf("taking %s: it is still somebody else's, %s", spec, o)
			}
			if g.Engine.Taking(id) || g.Engine.Doomed(id) { // the ledger has the owner, but the thing may not be there
				return fmt.Errorf("taking %s: an earlier try has not ended, or its release is not promised yet", spec)
			}
			same, doubt := sameRecord(o, rec), g.Doubt.Load()
			if same && !doubt {
				return nil
			}
			return g.aside(ctx, spec.String(), func(ctx context.Context) error {
				var err error
				if !same {
					err = g.amend(ctx, id, rec)
				}
				if doubt {
					err = errors.Join(err, g.Engine.Repair(ctx, id))
				}
				return err
			})
		}
		waiting, cancel := context.WithTimeout(ctx, formerHolder)
		defer cancel()
		if err := g.Engine.Wait(waiting, id); err != nil {
			return fmt.Errorf("waiting until the former owner %s of %s is released: %w", id, spec, err)
		}
	}
	return g.aside(ctx, spec.String(), func(ctx context.Context) error {
		return g.Engine.Take(ctx, nodeOwner(rec, name, spec))
	})
}

// aside calls `do`, and waits for it, for Holding at most: `do` may not notice that its context has
// ended. Then a start, a sweep or a new configuration goes on without the thing that `do` takes. Until
// `do` has ended, another call of aside with the same `what` fails at once.
func (g *Ground) aside(ctx context.Context, what string, do func(context.Context) error) error {
	if _, goesOn := g.hanging.LoadOrStore(what, nil); goesOn {
		return fmt.Errorf("taking %s: an earlier try has not ended", what)
	}
	ctx, cancel := context.WithTimeout(ctx, Holding)
	defer cancel()
	done := make(chan error, 1)
	go func() {
		err := do(ctx)
		g.hanging.Delete(what)
		done <- err
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("taking %s: %w", what, context.Cause(ctx))
	}
}

// giveBack gives back the CIDRs that are out of the config and out of use. These are the
// CIDRs that the ledger has and IPAM does not have. giveBack does not go by what IPAM
// reports as drained, because IPAM reports each CIDR only once, and a release that could
// not be promised has to be tried again.
func (g *Ground) giveBack(ctx context.Context) error {
	now := g.Clock.Now()
	_ = g.Pools.Drained(now) // it makes IPAM forget the drained CIDRs
	used := map[netip.Prefix]bool{}
	for _, p := range g.Pools.Stats(now) {
		for _, c := range p.CIDRs {
			used[c.CIDR] = true
		}
	}
	var done []hold.ID
	for _, h := range g.heldCIDRs() {
		if !used[h.cidr] {
			done = append(done, h.owner)
		}
	}
	if len(done) == 0 {
		return nil
	}
	return errors.Join(g.Engine.Release(ctx, done), g.keepTable(ctx))
}

// Begin tells the table what it should contain, looks for the uplinks' MTU, and takes again
// what the agent lacks of what it holds itself. The agent calls Begin before it restores
// anything else, because cuts rely on the table. Begin leaves a thing that hangs to Keep, and Keep
// leaves it to the sweep, so that deletions do not wait for this thing any longer.
func (g *Ground) Begin(ctx context.Context) error {
	defer g.begun.Store(true)
	if err := g.keepTable(ctx); err != nil {
		g.Log.Warn("could not bring the nftables table up to date", "err", err)
	}
	var err error
	if g.uplinkMTU, err = g.node.Conn.UplinkMTU(); err != nil {
		g.Log.Warn("could not find out the uplink's MTU", "err", err)
	}
	ctx, cancel := context.WithTimeout(ctx, 2*Holding)
	defer cancel()
	if err = g.Engine.Repair(ctx, g.Owners()...); err != nil {
		g.Log.Warn("could not restore all that the agent itself holds", "err", err)
	}
	return err
}

// Owners returns the agent's own owners: the owner of its table, the owners of the routes for host
// ports, and the owners of its pools' CIDRs.
func (g *Ground) Owners() []hold.ID {
	var ids []hold.ID
	for _, n := range []hold.Name{TableName, StandName(nft.Stand4), StandName(nft.Stand6)} {
		if id, held := g.Ledger.Holder(n); held {
			ids = append(ids, id)
		}
	}
	for _, h := range g.heldCIDRs() {
		ids = append(ids, h.owner)
	}
	return ids
}

// Keep takes what the node needs, and gives back what it does not need any more.
func (g *Ground) Keep(ctx context.Context) {
	done, err := g.turn.Take(ctx)
	if err != nil {
		return
	}
	defer done()
	defer g.Hooks.Counted()
	if err := g.Hold(ctx); err != nil {
		g.Log.Warn("could not take all that the agent itself holds on the node", "err", err)
	}
	if err := g.giveBack(ctx); err != nil {
		g.Log.Warn("could not give back all drained pools", "err", err)
	}
}

// MTU returns the MTU, in bytes, of pods whose configuration names none: the MTU in the
// agent's configuration or, if there is none, the uplinks', less what the tunnel to other nodes takes.
func (g *Ground) MTU() int {
	if mtu := g.Config().MTU; mtu > 0 {
		return mtu
	}
	return g.UplinkMTU() - g.Hooks.Overhead()
}

// UplinkMTU returns the MTU, in bytes, of the node's uplinks or, without an uplink, Ethernet's.
func (g *Ground) UplinkMTU() int { return cmp.Or(g.uplinkMTU, 1500) }

// Pool returns the name of the pool that a network's configuration names; "" names the
// default pool. It fails if the agent has no such pool.
func (g *Ground) Pool(name string) (string, error) {
	g.setting.RLock()
	pools := g.Config().Pools
	g.setting.RUnlock()
	names := make([]string, len(pools))
	for i, p := range pools {
		if names[i] = p.Name; p.Name == name || name == "" {
			return p.Name, nil
		}
	}
	if len(names) == 0 {
		return "", cni.Errorf(cni.CodeTryAgain, "no pool yet", "the cluster has given this node no addresses for its pods yet")
	}
	return "", cni.Errorf(cni.CodeConfig, "unknown pool", "the agent has no pool %q; its pools are %s", name, strings.Join(names, ", "))
}

// CIDRs returns the CIDRs from which a pool gives addresses.
func (g *Ground) CIDRs(pool string) []netip.Prefix {
	for _, p := range g.Config().Pools {
		if p.Name == pool {
			return p.CIDRs
		}
	}
	return nil
}

// Segment returns the segment of a pool; nil: the pool has none.
func (g *Ground) Segment(pool string) *ipam.Segment {
	for _, p := range g.Config().Pools {
		if p.Name == pool {
			return p.Segment
		}
	}
	return nil
}

// PoolsWith returns the names of the pools that have a segment, or of those that have none.
func (g *Ground) PoolsWith(segment bool) (names []string) {
	for _, p := range g.Config().Pools {
		if segment == (p.Segment != nil) {
			names = append(names, p.Name)
		}
	}
	return names
}

// PoolOf returns the name of the pool that has an address, or "" if no pool has it.
func (g *Ground) PoolOf(a netip.Addr) string { return g.Pools.PoolOf(a) }

// Under returns the names that the agent's own owners have and on which an attachment
// relies: the name of the table by which the attachment is cut off, and the names of its addresses'
// CIDRs. Needs has the owners of the latter.
func (g *Ground) Under(o hold.Owner) []hold.Name {
	names := []hold.Name{TableName}
	for _, p := range g.Pools.Stats(g.Clock.Now()) {
		for _, c := range p.CIDRs {
			has := func(name string) bool {
				addr, err := netip.ParseAddr(name)
				return err == nil && c.CIDR.Contains(addr)
			}
			if slices.ContainsFunc(o.NamesIn(ipam.Space), has) {
				names = append(names, CIDRName(c.CIDR))
			}
		}
	}
	return names
}

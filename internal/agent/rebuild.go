package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/berth-net/berth/internal/stamp"

	"github.com/berth-net/berth/internal/attachment"
	"github.com/berth-net/berth/internal/cni/netconf"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/kinds/poolroute"
	"github.com/berth-net/berth/internal/ledger"
	"github.com/berth-net/berth/internal/root"
	"github.com/berth-net/berth/internal/server"
)

// Rebuilt says what became of a ledger that was made anew.
type Rebuilt struct {
	Kept  string    // where the former one is now; "" if there was none
	Until time.Time // when the addresses that nobody has can be given out; zero: at once
	Pods  []Adopted
	Lost  []string // what the kernel does not tell of any of them
}

// Adopted is an attachment as it was found in the kernel.
type Adopted struct {
	Owner     hold.Owner
	Record    attachment.Record
	Addresses []netip.Addr
	Lost      []string // what is not known of it
}

// lostForAll is what stands in no stamp.
var lostForAll = []string{
	"pods' names: attachments are known by network, container and interface alone",
	"pods' DNS settings: a repeated ADD answers without them",
	"when attachments were made: as if it were now",
	"which addresses rest: all that nobody has rest for a full cooldown",
	"tombstones: an ADD that was overtaken by its DEL, and is still on its way, is executed",
}

// RebuildLedger makes a ledger that is lost, damaged or older than the pods anew
// from what the kernel's stamps say. The pods stay as they are. An agent that runs,
// or an intact ledger, is an error.
func RebuildLedger(ctx context.Context, o Options) (*Rebuilt, error) {
	// Somebody may have taken its ledger away: what it still writes there would be
	// missing in the new one.
	if err := server.Unserved(o.Root); err != nil {
		return nil, fmt.Errorf("%w, with the ledger that it opened: stop it first", err)
	}
	if _, err := os.Stat(o.Root.Instance()); err != nil && !remembered(o.Root) {
		return nil, fmt.Errorf("%w: nothing tells which links are this agent's: %w", ErrInstanceLost, err)
	}
	a, err := openNode(o, (*Agent).openKernel)
	if err != nil {
		return nil, err
	}
	out, err := a.rebuild(ctx, findPods)
	return out, errors.Join(err, a.queue.Close(), a.closeKernel())
}

// remembered reports whether the marker has the instance id.
func remembered(dir root.Dir) bool {
	_, instance, err := readMarker(dir)
	return err == nil && instance != ""
}

func (a *Agent) rebuild(ctx context.Context, find func(ns.Ref, []wantedEnd) map[string]podEnd) (*Rebuilt, error) {
	if err := a.refuseOther(); err != nil {
		return nil, err
	}
	if err := a.replaceable(); err != nil {
		return nil, err
	}
	if err := a.alone(); err != nil {
		return nil, err
	}
	if err := a.sameEpoch(); err != nil {
		return nil, err
	}
	now := a.wall()
	pods, err := a.survey(now, find)
	if err != nil {
		return nil, err
	}
	ops := append([]ledger.Op{ledger.Enter(thisEpoch(a.boot, a.self))}, a.quarantine()...)
	for _, p := range pods {
		ops = append(ops, ledger.Begin(p.Owner))
		if !p.Owner.Wanted() {
			ops = append(ops, ledger.Releasing(p.Owner.ID, now))
		}
	}
	routes, err := a.formerPools(ctx)
	if err != nil {
		return nil, err
	}
	for _, o := range routes {
		ops = append(ops, ledger.Begin(o))
	}
	out := &Rebuilt{Pods: pods, Lost: slices.Clone(lostForAll)}
	if rest := a.ipam.Longest(); rest > 0 {
		out.Until = now.Add(rest)
	}
	if out.Kept, err = ledger.Replace(a.ledgerOptions(), ops); err != nil {
		return nil, err
	}
	return out, nil
}

// replaceable refuses to replace a ledger that is intact and knows of all pods.
func (a *Agent) replaceable() error {
	path := a.Root.Ledger()
	if there, err := ledgerThere(path); !there || err != nil {
		return err
	}
	have, err := ledger.Read(path, a.kinds())
	var damaged *ledger.DamagedError
	if errors.As(err, &damaged) {
		return nil
	}
	if err != nil {
		return err
	}
	owned := map[hold.ID]bool{}
	for _, o := range have.Owners {
		owned[o.ID] = true
	}
	newer, err := a.unknown(func(id hold.ID) bool { return owned[id] })
	if err == nil && len(newer) == 0 {
		err = fmt.Errorf("%s is intact, and there is nothing to rebuild", path)
	}
	return err
}

// sameEpoch refuses to look for pods elsewhere than where they were attached.
func (a *Agent) sameEpoch() error {
	was, _, err := readMarker(a.Root)
	if err != nil {
		return err
	}
	if strings.HasPrefix(was, a.boot+"/") && was != a.epoch && !a.Moved {
		return fmt.Errorf("%w, and its ledger is lost: start it where it ran, or say --moved if all of its pods are gone", ErrMoved)
	}
	return nil
}

// survey makes an owner of every link with this agent's stamp.
func (a *Agent) survey(now time.Time, find func(ns.Ref, []wantedEnd) map[string]podEnd) ([]Adopted, error) {
	links, err := a.ownLinks()
	if err != nil {
		return nil, err
	}
	routes, err := steady(func() ([]rtnl.Route, error) { return a.conn.Routes(rtnl.RouteFilter{}) })
	if err != nil {
		return nil, fmt.Errorf("looking for the pods' routes: %w", err)
	}
	neighbours, err := steady(a.conn.Neighbours)
	if err != nil {
		return nil, fmt.Errorf("looking for the pods' link-layer addresses: %w", err)
	}
	slices.SortFunc(links, func(x, y rtnl.Link) int { return strings.Compare(x.Name, y.Name) })
	var wanted []wantedEnd
	had := map[netip.Addr]bool{}
	for _, l := range links { // what the node's routes say goes before what pods say
		w := wantedEnd{Link: l}
		for _, addr := range routed(routes, l.Index) {
			had[addr] = true
			for _, n := range neighbours {
				if n.Index == l.Index && n.Addr == addr {
					w.mac = n.MAC
				}
			}
		}
		wanted = append(wanted, w)
	}
	ends := find(a.self, wanted)
	taken := map[netip.Addr]bool{}
	var pods []Adopted
	for _, l := range wanted {
		seen := attachment.Sight{Name: l.Name, Alias: l.Alias, MTU: l.MTU, MAC: l.mac, Addresses: routed(routes, l.Index)}
		end := ends[l.Name]
		if end.mac != "" {
			seen.MAC = end.mac
		}
		if len(seen.Addresses) == 0 { // it is down
			seen.Addresses = slices.DeleteFunc(end.addrs, func(x netip.Addr) bool { return had[x] || a.ipam.PoolOf(x) == "" })
		}
		seen.Addresses = slices.DeleteFunc(seen.Addresses, func(x netip.Addr) bool { return taken[x] })
		for _, addr := range seen.Addresses {
			taken[addr] = true
		}
		pods = append(pods, a.adopted(l.Link, seen, end, now))
	}
	markAlike(pods)
	return pods, nil
}

// markAlike marks pods with the same key, which lacks an end: their links alone tell
// which is which, also when only one of them is left.
func markAlike(pods []Adopted) {
	count := map[attachment.Key]int{}
	for _, p := range pods {
		count[p.Record.Key]++
	}
	for i := range pods {
		if p := &pods[i]; count[p.Record.Key] > 1 {
			p.Record.Alike = true
			p.Owner.Meta = p.Record.Encode()
		}
	}
}

// adopted is the attachment that a link stands for.
func (a *Agent) adopted(l rtnl.Link, seen attachment.Sight, end podEnd, now time.Time) Adopted {
	id, _ := stamp.LinkID(l.Name)
	p := Adopted{Addresses: seen.Addresses}
	// Started is 0 where the alias does not say it: every deletion comes after it.
	p.Record = attachment.Record{Netns: end.ref, Mode: netconf.ModeRouted, Created: now, Made: a.boottime(), Epoch: a.epoch, Adopted: true}
	s, stamped := stamp.Parse(l.Alias)
	key, err := s.Key()
	switch {
	case !stamped || err != nil || s.Instance != a.instance || s.ID != id:
		p.Lost = append(p.Lost, "network, container, interface")
	case s.Short():
		p.Lost = append(p.Lost, "the end of network/container/interface")
		fallthrough
	default:
		p.Record.Key, p.Record.Started = key, s.Start
	}
	if end.ref.Ino == 0 {
		p.Lost = append(p.Lost, "network namespace")
	}
	if len(seen.Addresses) == 0 {
		p.Lost = append(p.Lost, "addresses")
	} else if p.Record.Pool = a.ipam.PoolOf(seen.Addresses[0]); p.Record.Pool == "" {
		p.Lost = append(p.Lost, "pool")
	}
	p.Owner = attachment.Owner(id, p.Record, attachment.Adopt(id, p.Record, seen), seen.Addresses, seen.Addresses)
	if l.Group == a.groups.Coming() || a.groups.IsDying(l.Group) {
		p.Owner.Releasing = now
	}
	return p
}

// formerPools makes owners of the routes of CIDRs that the configuration does
// not have any more: pods may still be in them. All else of the agent's own is
// taken at the start, and is there already.
func (a *Agent) formerPools(ctx context.Context) ([]hold.Owner, error) {
	found, err := a.routes.Kind().Find(ctx, nil)
	if err != nil {
		return nil, fmt.Errorf("looking for the pools' routes: %w", err)
	}
	configured := prefixes(a.config.Load().Pools)
	var owners []hold.Owner
	for _, h := range found {
		if spec, ok := h.Spec.(*poolroute.Spec); ok && !slices.Contains(configured, spec.CIDR) {
			owners = append(owners, nodeOwner(nodeRecord{Sort: poolSort, Pool: "former"}, cidrName(spec.CIDR), spec))
		}
	}
	return owners, nil
}

func routed(routes []rtnl.Route, index int) []netip.Addr {
	return hosts(slices.DeleteFunc(slices.Clone(routes), func(r rtnl.Route) bool { return r.Index != index }))
}

// steady repeats a look that a change interrupted.
func steady[T any](look func() ([]T, error)) (all []T, err error) {
	for range 10 {
		if all, err = look(); !errors.Is(err, kernel.ErrInterrupted) {
			break
		}
	}
	return all, err
}

// Package adopt takes over the pods that a former CNI of the node has attached (issue 13). After a node's CNI was changed, runtimes send
// the DELs of old pods to the new plugin, and whatever the former plugins hold for these pods would stay. So each of the former CNI's
// attachments that package former reads becomes an attachment of mode `delegated`, as if its plugins had been executed by this agent: the
// pod keeps its network, and its DEL is owed, tried again and journalled like any other.
//
// An adoption executes no plugin, and puts nothing right in a pod: what the ledger has from then on is what ADD once made.
package adopt

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/attachment"
	"github.com/berth-net/berth/internal/cni"
	"github.com/berth-net/berth/internal/cni/netconf"
	"github.com/berth-net/berth/internal/daemon"
	"github.com/berth-net/berth/internal/engine"
	"github.com/berth-net/berth/internal/former"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/ledger"
	"github.com/berth-net/berth/internal/mode/delegated"
)

// Adopter adopts what former CNIs have left.
type Adopter struct {
	*daemon.Core
	index *attachment.Index
	one   sync.Mutex // one adoption at a time: two would adopt the same pod
}

// New returns an Adopter.
func New(d *daemon.Core, x *attachment.Index) *Adopter { return &Adopter{Core: d, index: x} }

// Adopt adopts each attachment of a former CNI that the ledger lacks, all of a container in one commit. It goes on after a problem, of which
// its answer tells. A repeated Adopt adopts nothing twice: an attachment's key is a container and an interface in it.
//
// A DEL that is answered before its pod is adopted finds nothing. The pod's network namespace goes after the DEL, and the next sweep
// after that releases what was adopted.
func (a *Adopter) Adopt(ctx context.Context, req api.AdoptRequest) (api.Adopted, error) {
	if !a.one.TryLock() {
		return api.Adopted{}, cni.Errorf(cni.CodeTryAgain, "another adoption is under way", "wait for its answer, and repeat the request")
	}
	defer a.one.Unlock()
	found, problems, err := former.Read(a.Root, req.CNIDirs...)
	if err != nil {
		return api.Adopted{}, cni.Errorf(cni.CodeIO, "cannot read what the former CNI has left", "%v", err)
	}
	if len(req.BinDirs) == 0 {
		req.BinDirs = []string{netconf.DefaultBinDir}
	}
	out := api.Adopted{Attachments: []api.AdoptedAttachment{}, Problems: []api.AdoptProblem{}}
	for _, p := range problems {
		out.Problems = append(out.Problems, api.AdoptProblem(p))
	}
	found = slices.DeleteFunc(found, former.Attachment.Own)
	for len(found) > 0 {
		if ctx.Err() != nil {
			return api.Adopted{}, cni.Errorf(cni.CodeTryAgain, "not all pods are adopted yet", "the time was up before container %s: repeat the request", found[0].Container)
		}
		n := slices.IndexFunc(found, func(f former.Attachment) bool { return f.Container != found[0].Container })
		if n < 0 {
			n = len(found)
		}
		c := &container{Adopter: a, req: req, all: found[:n]}
		found = found[n:]
		c.adopt(ctx)
		out.Attachments, out.Problems = append(out.Attachments, c.views...), append(out.Problems, c.problems...)
	}
	return out, nil
}

// container is the adoption of one container.
type container struct {
	*Adopter
	req      api.AdoptRequest
	all      []former.Attachment // of the container, in the order of ADD
	views    []api.AdoptedAttachment
	problems []api.AdoptProblem
}

// adopt adopts what the ledger lacks of the container.
func (c *container) adopt(ctx context.Context) {
	var lacking []former.Attachment
	for _, f := range c.all {
		if e := c.known(f); e != nil {
			c.view(f, api.OutcomeKnown, e.Owner.ID)
		} else if err := adoptable(f); err != nil {
			c.problem(f, err)
		} else {
			lacking = append(lacking, f)
		}
	}
	if len(lacking) == 0 {
		return
	}
	places, gone, err := c.places(lacking)
	if err != nil {
		c.problem(lacking[0], err)
		return
	}
	owners := c.owners(lacking, places, gone)
	if !c.req.DryRun {
		if err := c.commit(ctx, owners, gone); err != nil {
			c.problem(lacking[0], fmt.Errorf("writing %d attachments of container %s to the ledger: %w", len(owners), lacking[0].Container, err))
			return
		}
	}
	outcome := api.OutcomeAdopted
	if gone {
		outcome = api.OutcomeGone
	}
	for i, f := range lacking {
		id := owners[i].ID
		if c.req.DryRun {
			id = ""
		} else {
			c.Log.Info("adopted what a former CNI has attached", append(attachment.AboutKey(attachment.Key{Network: f.Network, ContainerID: f.Container, Ifname: f.Ifname}, f.Pod), "outcome", outcome, "id", id)...)
		}
		c.view(f, outcome, id)
	}
}

// adoptable refuses an attachment in which Berth's own plugin took part behind others: its DEL would come back to this agent.
func adoptable(f former.Attachment) error {
	if i := slices.Index(f.Types(), former.OwnType); i >= 0 {
		return fmt.Errorf("plugin %d of network %s is %s itself; only attachments that other plugins alone have made are adopted", i+1, f.Network, former.OwnType)
	}
	return nil
}

// known returns the attachment in the ledger that is a former CNI's attachment; nil: there is none.
func (c *container) known(f former.Attachment) *attachment.Entry {
	for _, e := range c.index.Container(f.Container) {
		if e.Record.Ifname == f.Ifname && (!e.Record.Former || e.Record.Label() == f.Network) {
			return e
		}
	}
	return nil
}

// owners returns the attachments' owners. The container's first attachment is one that the ledger has, or else the first of them; the
// others join it, unless it goes already.
func (c *container) owners(lacking []former.Attachment, places []place, gone bool) (owners []hold.Owner) {
	first, joined := c.first(lacking[0].Container)
	for i, f := range lacking {
		r := attachment.Record{
			Key:   attachment.Key{Network: f.Network, ContainerID: f.Container, Ifname: f.Ifname},
			Netns: places[i].ref, Pod: f.Pod, Mode: netconf.ModeDelegated, Created: c.Wall(), Epoch: c.Epoch, Former: true, First: first,
		}
		if first != "" {
			r.Network = attachment.FurtherNetwork(f.Network)
		}
		o := delegated.Former(hold.NewID(), r, f, c.req.BinDirs, c.Root)
		if first != "" {
			joined++
			o.Needs, o.Joined = []hold.ID{first}, joined
		}
		owners = append(owners, o)
		first = cmp.Or(first, o.ID)
	}
	return owners
}

// first returns the first attachment that the ledger has of a container, and how many have joined it; "": there is none.
func (c *container) first(id string) (first hold.ID, joined int) {
	for _, e := range c.index.Container(id) {
		if e.Record.Further() || !e.Owner.Wanted() {
			continue
		}
		for _, f := range c.index.Further(e.Owner.ID) {
			joined = max(joined, f.Owner.Joined)
		}
		return e.Owner.ID, joined
	}
	return "", 0
}

// commit begins owners. Those of a pod that is gone are being released from the same commit on.
func (c *container) commit(ctx context.Context, owners []hold.Owner, gone bool) error {
	var ops []ledger.Op
	var ids []hold.ID
	for _, o := range owners {
		ops, ids = append(ops, ledger.Begin(o)), append(ids, o.ID)
	}
	if !gone {
		return c.Ledger.Commit(ctx, append(ops, ledger.Room())...)
	}
	for _, id := range ids {
		ops = append(ops, ledger.Releasing(id, c.Wall()))
	}
	return c.Engine.Release(engine.AskedBy(ctx, engine.AskerHome), ids, ops...)
}

func (c *container) view(f former.Attachment, outcome string, id hold.ID) {
	c.views = append(c.views, api.AdoptedAttachment{
		Outcome: outcome, ID: string(id), Pod: f.Pod, ContainerID: f.Container, Ifname: f.Ifname, Network: f.Network, Plugins: f.Types(),
	})
}

func (c *container) problem(f former.Attachment, err error) {
	c.problems = append(c.problems, api.AdoptProblem{Path: f.Path, Reason: err.Error()})
}

package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/attachment"
	"github.com/berth-net/berth/internal/cni"
	"github.com/berth-net/berth/internal/cni/netconf"
	"github.com/berth-net/berth/internal/cni/result"
	"github.com/berth-net/berth/internal/engine"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/kinds/link"
	"github.com/berth-net/berth/internal/ledger"
	"github.com/berth-net/berth/internal/server"
)

// formerLink is how long an ADD waits for a link to go that is being released
// and has its place in the pod.
const formerLink = 10 * time.Second

// addition is an ADD whose input has been found good.
type addition struct {
	conf   *netconf.Conf
	record attachment.Record
	when   server.When
}

// Add attaches a container to a network (CNI 1.1, section 4, ADD). Repeated for
// the same netns it answers the same; for another one the old incarnation is
// released first.
//
// A runtime must not ADD twice (CNI 1.1, section 2, "Lifecycle & Ordering"); one
// that does repeats what nobody has answered, with the configuration of then. So
// what that says by now of pool, mtu or dns is not compared: a change of the
// network's configuration is for new pods. An address or a MAC that is asked for
// and is not what stands is refused.
func (a *Agent) Add(ctx context.Context, req api.AddRequest, w server.When) (json.RawMessage, error) {
	add, err := a.parse(req, w)
	if err != nil {
		return nil, err
	}
	if add.conf.PrevResult != nil {
		return nil, cni.Errorf(cni.CodeConfig, "invalid configuration: prevResult",
			"mode %s makes an interface of its own: it has to be the first plugin of its list", add.record.Mode)
	}
	if err := a.checkNetns(add.record.Netns); err != nil {
		return nil, err
	}
	unlock, err := a.keys.lock(ctx, add.record.Key)
	if err != nil {
		return nil, answer(err)
	}
	defer unlock()
	if err := a.drainKey(ctx, add.record.Key); err != nil {
		return nil, cni.Errorf(cni.CodeTryAgain, "an earlier deletion could not be done", "%v", err)
	}
	e, err := a.standing(ctx, add)
	if err == nil && e == nil {
		e, err = a.attach(ctx, add)
	}
	if err != nil {
		return nil, answer(err)
	}
	res, err := attachment.Result(e.owner, e.record)
	if err != nil {
		return nil, err
	}
	raw, bad := result.Encode(res, add.conf.Version)
	if bad != nil {
		return nil, bad
	}
	return raw, nil
}

// parse checks an ADD's or a CHECK's input, and changes nothing.
func (a *Agent) parse(req api.AddRequest, w server.When) (*addition, error) {
	conf, bad := netconf.Parse(req.Config)
	if bad != nil {
		return nil, bad
	}
	if bad := cni.CheckContainerID(req.ContainerID); bad != nil {
		return nil, bad
	}
	if bad := cni.CheckNewIfname(req.Ifname); bad != nil {
		return nil, bad
	}
	if bad := cni.CheckNetnsPath(req.Netns.Path); bad != nil {
		return nil, bad
	}
	args, bad := cni.ParseArgs(req.Args)
	if bad != nil {
		return nil, bad
	}
	return &addition{
		conf: conf,
		when: w,
		record: attachment.Record{
			Key:     attachment.Key{Network: conf.Name, ContainerID: req.ContainerID, Ifname: req.Ifname},
			Netns:   ns.Ref(req.Netns),
			Pod:     args.Pod,
			Mode:    conf.Mode,
			DNS:     types.DNS(conf.DNS),
			Created: a.wall(),
			Made:    a.boottime(),
			Started: w.Started,
			Epoch:   a.epoch,
		},
	}, nil
}

// checkNetns refuses a netns that is gone, is not what the plugin saw at its
// path, or is the agent's own.
func (a *Agent) checkNetns(ref ns.Ref) error {
	at, err := a.identify(ref)
	switch {
	case errors.Is(err, ns.ErrNotNetns):
		return cni.Errorf(cni.CodeNetns, "CNI_NETNS is no network namespace", "%s: %v", ref.Path, err)
	case err != nil:
		return cni.Errorf(cni.CodeNetns, "CNI_NETNS cannot be used", "%s: %v", ref.Path, err)
	}
	if a.self.Same(at) {
		return cni.Errorf(cni.CodeNetns, "CNI_NETNS is the node's own network namespace", "%s: a pod needs one of its own", ref.Path)
	}
	return nil
}

// standing returns the attachment that an ADD repeats, if there is one. What
// else has its key or its place in the pod is released first, or waited for;
// not before all that can refuse the ADD has been looked at.
func (a *Agent) standing(ctx context.Context, add *addition) (*entry, error) {
	place := slotOf(add.record.Netns, add.record.Ifname)
	var old, former []hold.ID
	for _, e := range a.index.key(add.record.Key) {
		if !e.owner.Wanted() {
			continue
		}
		if a.engine.Doomed(e.owner.ID) { // a failed ADD, whose release could not be promised yet
			old, former = append(old, e.owner.ID), append(former, e.owner.ID)
			continue
		}
		if slotOf(e.record.Netns, e.record.Ifname) == place {
			if err := asWished(e, add.conf); err != nil {
				return nil, err
			}
			if err := a.askedAgain(ctx, e, add); err != nil {
				return nil, err
			}
			return a.whole(ctx, e, add.when.Started)
		}
		if !e.record.BeganBefore(a.epoch, add.when.Started) {
			return nil, cni.Errorf(cni.CodeTryAgain, "overtaken by a later ADD of the same attachment",
				"%s, in %s, began later", e.owner.ID, e.record.Netns.Path)
		}
		old = append(old, e.owner.ID)
		if !e.record.KnowsNetns() { // it may be this one
			former = append(former, e.owner.ID)
		}
	}
	if err := a.fit(add); err != nil {
		return nil, err
	}
	for _, e := range a.index.slot(place) {
		if e.owner.Wanted() { // unless its deletion waits, which has been promised
			if err := a.drainKey(ctx, e.record.Key); err != nil {
				return nil, cni.Errorf(cni.CodeTryAgain, "an earlier deletion could not be done", "%v", err)
			}
		}
		if a.engine.Doomed(e.owner.ID) {
			old = append(old, e.owner.ID)
		} else if now := a.index.get(e.owner.ID); now != nil && now.owner.Wanted() {
			return nil, cni.Errorf(cni.CodeTaken, "interface exists in the pod",
				"%s in %s belongs to attachment %s (%s)", add.record.Ifname, add.record.Netns.Path, e.owner.ID, e.record.Key)
		}
		former = append(former, e.owner.ID)
	}
	if len(former) == 0 { // or it is theirs
		if err := a.vacant(add.record); err != nil {
			return nil, err
		}
	}
	if err := a.engine.Release(ctx, old); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, formerLink)
	defer cancel()
	if err := a.engine.WaitKind(ctx, link.KindName, former...); err != nil { // what else they owe is in nobody's way
		return nil, fmt.Errorf("waiting for the former link of %s in %s to go: %w", add.record.Ifname, add.record.Netns.Path, err)
	}
	return nil, nil
}

// vacant refuses a place in a pod that has somebody else's interface. So would
// the link's kind, but by then addresses are claimed, and would have to rest.
func (a *Agent) vacant(r attachment.Record) error {
	if there, err := a.occupied(r.Netns, r.Ifname); err != nil || !there {
		return nil // what cannot be seen is for the link's kind to say
	}
	return cni.Errorf(cni.CodeTaken, "interface exists in the pod", "%s in %s is none of this agent's", r.Ifname, r.Netns.Path)
}

// asWished refuses an ADD of what is attached already with another address, or
// another MAC, than it asks for.
func asWished(e *entry, c *netconf.Conf) error {
	spec, err := attachment.Link(e.owner)
	if err != nil {
		return err
	}
	const otherwise = "invalid configuration: attached otherwise already"
	for _, addr := range c.IPs {
		if !slices.Contains(spec.Addresses, addr) {
			return cni.Errorf(cni.CodeConfig, otherwise,
				"%s stands as %s with %v, and the address %s is asked for: DEL it first", e.record.Key, e.owner.ID, spec.Addresses, addr)
		}
	}
	if mac := net.HardwareAddr(c.MAC).String(); c.MAC != nil && mac != spec.MAC {
		return cni.Errorf(cni.CodeConfig, otherwise,
			"%s stands as %s with the MAC %s, and %s is asked for: DEL it first", e.record.Key, e.owner.ID, spec.MAC, mac)
	}
	return nil
}

// askedAgain writes down that an ADD is about to be answered with an attachment that
// stands, and when it began: a DEL from before it, which is on its way still, must not
// release it. From now on the pod is at the path that this ADD names; the one that an
// earlier ADD has named may be gone.
func (a *Agent) askedAgain(ctx context.Context, e *entry, add *addition) error {
	rec := e.record
	if rec.BeganBefore(a.epoch, add.when.Started-1) && rec.Epoch == a.epoch {
		rec.Started = add.when.Started
	}
	moved := rec.Netns.Path != add.record.Netns.Path
	if !moved && rec.Started == e.record.Started {
		return nil
	}
	rec.Netns = add.record.Netns
	meta := rec.Encode()
	return a.engine.Ledger.Commit(ctx, ledger.Update(e.owner.ID, func(o *hold.Owner) error {
		if !o.Wanted() {
			return engine.ErrOvertaken
		}
		o.Meta = meta
		if moved {
			*o = attachment.In(rec.Netns, *o)
		}
		return nil
	}))
}

// whole sees to it that what an ADD answers again is there, and can be used: an
// earlier try may have ended half-way, and its repair failed. Its link says when the
// ADD began, to a DEL that comes to it without an agent.
func (a *Agent) whole(ctx context.Context, e *entry, started int64) (*entry, error) {
	if err := a.engine.Repair(ctx, e.owner.ID); err != nil {
		return nil, err
	}
	now := a.index.get(e.owner.ID)
	if now == nil || !now.owner.Wanted() {
		return nil, engine.ErrOvertaken
	}
	if err := a.engine.Settle(ctx, now.owner); err != nil {
		return nil, err
	}
	if now := a.index.get(e.owner.ID); now == nil || !now.owner.Wanted() {
		return nil, engine.ErrOvertaken
	}
	if e.record.BeganBefore(a.epoch, started-1) {
		spec, err := attachment.Link(now.owner)
		if err != nil {
			return nil, err
		}
		if err := a.links.Restamp(spec, started); err != nil {
			return nil, err
		}
	}
	return now, nil
}

// since is when the last ADD began that an attachment was answered to, of this boot; 0 if
// it is not known.
func (a *Agent) since(id hold.ID) int64 {
	if e := a.index.get(id); e != nil && e.record.Epoch == a.epoch {
		return e.record.Started
	}
	return 0
}

// fit chooses the pool of a new attachment, and refuses what cannot go with it.
func (a *Agent) fit(add *addition) error {
	pool, err := a.pool(add.conf.Pool)
	if err != nil {
		return err
	}
	if err := a.spared(); err != nil {
		return cni.Errorf(cni.CodeIO, "a deletion might find no room", "%v", err)
	}
	if err := a.equipped(pool); err != nil {
		return cni.Errorf(cni.CodeTryAgain, "the node is not ready for pods", "pool %s: %v", pool, err)
	}
	add.record.Pool = pool
	mtu := a.mtu(add.conf)
	for _, p := range a.config.Load().Pools {
		is6 := func(c netip.Prefix) bool { return c.Addr().Is6() }
		if p.Name == pool && mtu < netconf.MinMTU6 && slices.ContainsFunc(p.CIDRs, is6) {
			return cni.Errorf(cni.CodeConfig, "invalid configuration: mtu",
				"mtu is %d; pool %s has IPv6, which needs %d or more", mtu, pool, netconf.MinMTU6)
		}
	}
	return nil
}

// attach claims addresses, plans and takes a new incarnation.
func (a *Agent) attach(ctx context.Context, add *addition) (*entry, error) {
	claim, err := a.claim(ctx, add)
	if err != nil {
		return nil, err
	}
	wish := attachment.Wish{MTU: a.mtu(add.conf), MAC: add.conf.MAC}
	o := attachment.Plan(hold.NewID(), a.instance, add.record, wish, claim.Addrs())
	err = a.engine.Take(ctx, o, ledger.Unburied(add.record.Key.String(), a.boot, add.record.Started))
	var refused *engine.RefusedError
	if errors.As(err, &refused) {
		a.ipam.Unclaim(claim, a.clock.Now())
	}
	if err != nil {
		return nil, err
	}
	return &entry{o, add.record}, nil
}

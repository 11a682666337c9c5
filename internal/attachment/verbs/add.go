package verbs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/answer"
	"github.com/berth-net/berth/internal/attachment"
	"github.com/berth-net/berth/internal/cni"
	"github.com/berth-net/berth/internal/cni/netconf"
	"github.com/berth-net/berth/internal/daemon"
	"github.com/berth-net/berth/internal/engine"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/ledger"
	"github.com/berth-net/berth/internal/mode"
	"github.com/berth-net/berth/internal/turn"
)

// FormerLink is how long an ADD waits for a link to go that is being released
// and has its place in the pod.
const FormerLink = 10 * time.Second

// addition is an ADD whose input has been found good.
type addition struct {
	conf   *netconf.Conf
	mode   mode.Mode
	record attachment.Record
	when   daemon.When
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
func (v *Verbs) Add(ctx context.Context, req api.AddRequest, w daemon.When) (json.RawMessage, error) {
	add, err := v.parse(req, w)
	if err != nil {
		return nil, err
	}
	if add.conf.PrevResult != nil {
		return nil, cni.Errorf(cni.CodeConfig, "invalid configuration: prevResult",
			"mode %s makes an interface of its own: it has to be the first plugin of its list", add.record.Mode)
	}
	if err := v.checkNetns(add.record.Netns); err != nil {
		return nil, err
	}
	unlock, err := v.keys.Take(ctx, add.record.Key)
	if errors.Is(err, turn.ErrCrowded) {
		return nil, cni.Errorf(cni.CodeTryAgain, "an earlier ADD has not ended", "%d ADDs of the same attachment wait already", repeats)
	}
	if err != nil {
		return nil, answer.Numbered(err)
	}
	defer unlock()
	if err := v.drain.Key(ctx, add.record.Key); err != nil {
		return nil, cni.Errorf(cni.CodeTryAgain, "an earlier deletion could not be done", "%v", err)
	}
	e, err := v.standing(ctx, add)
	fresh := err == nil && e == nil
	if fresh {
		e, err = v.attach(ctx, add)
	}
	if err == nil {
		err = v.notDeleted(ctx, e, fresh)
	}
	if err != nil {
		return nil, answer.Numbered(err)
	}
	return mode.EncodeResult(add.mode, e, add.conf)
}

// notDeleted looks for deletions again, behind the link: what was queued before that was
// there could cut nothing off, and has been answered with success. Where nothing was told
// of, as ever, it costs nothing. A fresh attachment of which this cannot be told is given
// up.
func (v *Verbs) notDeleted(ctx context.Context, e *attachment.Entry, fresh bool) error {
	if v.drain.Quiet() {
		return nil
	}
	if err := v.drain.Key(ctx, e.Record.Key); err != nil {
		var undone error
		if fresh {
			undone = v.Engine.Release(context.WithoutCancel(ctx), []hold.ID{e.Owner.ID})
		}
		return cni.Errorf(cni.CodeTryAgain, "a later deletion could not be done", "%v", errors.Join(err, undone))
	}
	if now := v.index.Get(e.Owner.ID); now == nil || !now.Owner.Wanted() {
		return engine.ErrOvertaken
	}
	return nil
}

// parse checks an ADD's or a CHECK's input, and changes nothing.
func (v *Verbs) parse(req api.AddRequest, w daemon.When) (*addition, error) {
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
	m, err := v.modes.Of(conf.Mode)
	if err != nil {
		return nil, cni.ConfigError("mode", strconv.AppendQuote(nil, conf.Mode), v.modes.Expected())
	}
	return &addition{
		conf: conf,
		mode: m,
		when: w,
		record: attachment.Record{
			Key:     attachment.Key{Network: conf.Name, ContainerID: req.ContainerID, Ifname: req.Ifname},
			Netns:   ns.Ref(req.Netns),
			Pod:     args.Pod,
			Mode:    conf.Mode,
			DNS:     types.DNS(conf.DNS),
			Created: v.Wall(),
			Made:    v.Boottime(),
			Started: w.Started,
			Epoch:   v.Epoch,
		},
	}, nil
}

// checkNetns refuses a netns that is gone, is not what the plugin saw at its
// path, or is the agent's own.
func (v *Verbs) checkNetns(ref ns.Ref) error {
	at, err := v.identify(ref)
	switch {
	case errors.Is(err, ns.ErrNotNetns):
		return cni.Errorf(cni.CodeNetns, "CNI_NETNS is no network namespace", "%s: %v", ref.Path, err)
	case err != nil:
		return cni.Errorf(cni.CodeNetns, "CNI_NETNS cannot be used", "%s: %v", ref.Path, err)
	}
	if v.Netns.Same(at) {
		return cni.Errorf(cni.CodeNetns, "CNI_NETNS is the node's own network namespace", "%s: a pod needs one of its own", ref.Path)
	}
	return nil
}

// standing returns the attachment that an ADD repeats, if there is one. What
// else has its key or its place in the pod is released first, or waited for;
// not before all that can refuse the ADD has been looked at.
func (v *Verbs) standing(ctx context.Context, add *addition) (_ *attachment.Entry, err error) {
	var old []hold.ID
	var former []*attachment.Entry
	for _, e := range v.index.Key(add.record.Key) {
		if !e.Owner.Wanted() {
			continue
		}
		if v.Engine.Doomed(e.Owner.ID) { // a failed ADD, whose release could not be promised yet
			old, former = append(old, e.Owner.ID), append(former, e)
			continue
		}
		if e.At(add.record.Netns, add.record.Ifname) {
			if err := asWished(e, add.conf); err != nil {
				return nil, err
			}
			if add.mode, err = v.modes.Of(e.Record.Mode); err != nil { // another one is for new pods
				return nil, err
			}
			if err := v.askedAgain(ctx, e, add); err != nil {
				return nil, err
			}
			return v.whole(ctx, e, add)
		}
		if !e.Record.BeganBefore(v.Epoch, add.when.Started) {
			return nil, cni.Errorf(cni.CodeTryAgain, "overtaken by a later ADD of the same attachment",
				"%s, in %s, began later", e.Owner.ID, e.Record.Netns.Path)
		}
		old = append(old, e.Owner.ID)
		if !e.Record.KnowsNetns() { // it may be this one
			former = append(former, e)
		}
	}
	if err := v.fit(add); err != nil {
		return nil, err
	}
	for _, e := range v.index.Slot(add.record.Netns, add.record.Ifname) {
		if e.Owner.Wanted() { // unless its deletion waits, which has been promised
			if err := v.drain.Key(ctx, e.Record.Key); err != nil {
				return nil, cni.Errorf(cni.CodeTryAgain, "an earlier deletion could not be done", "%v", err)
			}
		}
		if v.Engine.Doomed(e.Owner.ID) {
			old = append(old, e.Owner.ID)
		} else if now := v.index.Get(e.Owner.ID); now != nil && now.Owner.Wanted() {
			return nil, cni.Errorf(cni.CodeTaken, "interface exists in the pod",
				"%s in %s belongs to attachment %s (%s)", add.record.Ifname, add.record.Netns.Path, e.Owner.ID, e.Record.Key)
		}
		former = append(former, e)
	}
	if len(former) == 0 { // or it is theirs
		if err := add.mode.Vacant(add.record); err != nil {
			return nil, err
		}
	}
	if err := v.Engine.Release(ctx, old); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, FormerLink)
	defer cancel()
	for _, e := range former {
		m, err := v.modes.Of(e.Record.Mode)
		if err == nil {
			err = v.Engine.WaitKind(ctx, m.Place(), e.Owner.ID) // what else it owes is in nobody's way
		}
		if err != nil {
			return nil, fmt.Errorf("waiting for the former link of %s in %s to go: %w", add.record.Ifname, add.record.Netns.Path, err)
		}
	}
	return nil, nil
}

// askedAgain writes down that an ADD is about to be answered with an attachment that
// stands, and when it began: a DEL from before it, which is on its way still, must not
// release it. From now on the pod is at the path that this ADD names; the one that an
// earlier ADD has named may be gone.
func (v *Verbs) askedAgain(ctx context.Context, e *attachment.Entry, add *addition) error {
	rec := e.Record
	if rec.BeganBefore(v.Epoch, add.when.Started-1) && rec.Epoch == v.Epoch {
		rec.Started = add.when.Started
	}
	moved := rec.Netns.Path != add.record.Netns.Path
	if !moved && rec.Started == e.Record.Started {
		return nil
	}
	rec.Netns = add.record.Netns
	meta := rec.Encode()
	return v.Engine.Ledger.Commit(ctx, ledger.Update(e.Owner.ID, func(o *hold.Owner) error {
		if !o.Wanted() {
			return engine.ErrOvertaken
		}
		o.Meta = meta
		if moved {
			*o = add.mode.In(rec.Netns, *o)
		}
		return nil
	}))
}

// whole sees to it that what an ADD answers again is there, and can be used: an
// earlier try may have ended half-way, and its repair failed. Its link says when the
// ADD began, to a DEL that comes to it without an agent.
func (v *Verbs) whole(ctx context.Context, e *attachment.Entry, add *addition) (*attachment.Entry, error) {
	if err := v.Engine.Repair(ctx, e.Owner.ID); err != nil {
		return nil, err
	}
	now := v.index.Get(e.Owner.ID)
	if now == nil || !now.Owner.Wanted() {
		return nil, engine.ErrOvertaken
	}
	if err := v.Engine.Settle(ctx, now.Owner); err != nil {
		return nil, err
	}
	if now := v.index.Get(e.Owner.ID); now == nil || !now.Owner.Wanted() {
		return nil, engine.ErrOvertaken
	}
	if started := add.when.Started; e.Record.BeganBefore(v.Epoch, started-1) {
		if err := add.mode.Again(now.Owner, started); err != nil {
			return nil, err
		}
	}
	return now, nil
}

// asWished refuses an ADD of what is attached already with another address, or
// another MAC, than it asks for.
func asWished(e *attachment.Entry, c *netconf.Conf) error {
	has := e.Interface
	const otherwise = "invalid configuration: attached otherwise already"
	for _, addr := range c.IPs {
		if !slices.Contains(has.Addresses, addr) {
			return cni.Errorf(cni.CodeConfig, otherwise,
				"%s stands as %s with %v, and the address %s is asked for: DEL it first", e.Record.Key, e.Owner.ID, has.Addresses, addr)
		}
	}
	if mac := net.HardwareAddr(c.MAC).String(); c.MAC != nil && mac != has.MAC {
		return cni.Errorf(cni.CodeConfig, otherwise,
			"%s stands as %s with the MAC %s, and %s is asked for: DEL it first", e.Record.Key, e.Owner.ID, has.MAC, mac)
	}
	return nil
}

// fit chooses the pool of a new attachment, and refuses what cannot go with it.
func (v *Verbs) fit(add *addition) error {
	pool, err := v.ground.Pool(add.conf.Pool)
	if err != nil {
		return err
	}
	if err := v.drain.Spared(); err != nil {
		return cni.Errorf(cni.CodeIO, "a deletion might find no room", "%v", err)
	}
	if err := v.ground.Equipped(pool); err != nil {
		return cni.Errorf(cni.CodeTryAgain, "the node is not ready for pods", "pool %s: %v", pool, err)
	}
	add.record.Pool = pool
	return add.mode.Fit(add.record, add.conf)
}

// attach plans and takes a new incarnation.
func (v *Verbs) attach(ctx context.Context, add *addition) (*attachment.Entry, error) {
	o, undo, err := add.mode.Plan(ctx, hold.NewID(), add.record, add.conf)
	if err != nil {
		return nil, err
	}
	err = v.Engine.Take(ctx, o, ledger.Unburied(add.record.Key.String(), v.Boot, add.record.Started))
	var refused *engine.RefusedError
	if errors.As(err, &refused) {
		undo()
	}
	if err != nil {
		return nil, err
	}
	return v.index.Entry(o, add.record), nil
}

package verbs

import (
	"context"
	"net"
	"slices"

	"github.com/berth-net/berth/internal/attachment"
	"github.com/berth-net/berth/internal/cni"
	"github.com/berth-net/berth/internal/cni/netconf"
	"github.com/berth-net/berth/internal/engine"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/ledger"
	"github.com/berth-net/berth/internal/mode"
)

// again answers an ADD with the attachment that it repeats. If the attachment is being released by
// now, the release has overtaken the ADD, whatever else the ADD has met.
func (v *Verbs) again(ctx context.Context, e *attachment.Entry, add *addition) (*attachment.Entry, error) {
	err := v.askedAgain(ctx, e, add)
	if err == nil {
		err = v.whole(ctx, e, add)
	}
	now := v.index.Get(e.Owner.ID)
	if now == nil || !now.Owner.Wanted() {
		return nil, engine.ErrOvertaken
	}
	return now, err
}

// An ADD is about to be answered with a standing attachment. askedAgain writes down when the ADD
// began: a DEL that began before this ADD, and is still on its way, must not release the
// attachment. It also writes down the path of the pod's network namespace that this ADD names,
// because the path that an earlier ADD named may be gone. It writes down the whole key as well,
// because an adopted attachment may have lacked the end of its key (named).
func (v *Verbs) askedAgain(ctx context.Context, e *attachment.Entry, add *addition) error {
	was := v.index.Get(e.Owner.ID)
	if was == nil {
		return engine.ErrOvertaken
	}
	rec := e.Record
	if rec.BeganBefore(v.Epoch, add.when.Started-1) && rec.Epoch == v.Epoch {
		rec.Started = add.when.Started
	}
	moved := was.Record.Netns.Path != add.record.Netns.Path || was.Record.Key != rec.Key
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
			*o = add.mode.In(rec.Netns, rec.Ifname, *o)
		}
		return nil
	}))
}

// whole makes sure that the attachment with which a repeated ADD is answered is complete
// and can be used: an earlier try may have ended half-way, and the repair after it may have
// failed, or the agent may have been killed. It also writes on the link when this ADD began, for a
// DEL that comes to the link without an agent.
func (v *Verbs) whole(ctx context.Context, e *attachment.Entry, add *addition) error {
	if err := v.Engine.Repair(ctx, e.Owner.ID); err != nil {
		return err
	}
	now := v.index.Get(e.Owner.ID)
	if now == nil || !now.Owner.Wanted() {
		return engine.ErrOvertaken
	}
	if v.incomplete(now) != nil {
		var err error
		if now, err = v.complete(ctx, now); err == nil {
			err = asWished(now, add.make)
		}
		if err != nil {
			return err
		}
	}
	if err := v.Engine.Settle(ctx, now.Owner); err != nil {
		return err
	}
	if now := v.index.Get(e.Owner.ID); now == nil || !now.Owner.Wanted() {
		return engine.ErrOvertaken
	}
	add.mode.Taken(now.Owner)
	if started := add.when.Started; e.Record.BeganBefore(v.Epoch, started-1) {
		return add.mode.Again(now.Owner, started)
	}
	return nil
}

// asWished refuses a repeated ADD that asks for an address, a MAC, a host port or a limit of
// bandwidth which the standing attachment does not have.
func asWished(e *attachment.Entry, c *netconf.Conf) error {
	has := e.Interface
	const otherwise = "invalid configuration: already attached with other settings"
	for _, addr := range c.IPs {
		if !slices.Contains(has.Addresses, addr) {
			return cni.Errorf(cni.CodeConfig, otherwise,
				"%s is already attached as %s with addresses %v, but this ADD asks for address %s: DEL it first", e.Record.Key, e.Owner.ID, has.Addresses, addr)
		}
	}
	for _, p := range mode.Mappings(c.Ports, has.Addresses) {
		if !slices.Contains(has.Ports, p) {
			return cni.Errorf(cni.CodeConfig, otherwise,
				"%s is already attached as %s, but this ADD asks for host port %s: DEL it first", e.Record.Key, e.Owner.ID, p)
		}
	}
	if differs := mode.OtherBandwidth(has, c.Bandwidth); differs != "" {
		return cni.Errorf(cni.CodeConfig, otherwise, "%s is already attached as %s with %s: DEL it first", e.Record.Key, e.Owner.ID, differs)
	}
	if mac := net.HardwareAddr(c.MAC).String(); c.MAC != nil && mac != has.MAC {
		return cni.Errorf(cni.CodeConfig, otherwise,
			"%s is already attached as %s with MAC %s, but this ADD asks for MAC %s: DEL it first", e.Record.Key, e.Owner.ID, has.MAC, mac)
	}
	return nil
}

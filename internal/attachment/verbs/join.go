package verbs

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/answer"
	"github.com/berth-net/berth/internal/attachment"
	"github.com/berth-net/berth/internal/cni"
	"github.com/berth-net/berth/internal/engine"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/mode"
	"github.com/berth-net/berth/internal/networks"
)

// join gives a pod the further networks of an ADD, in their order, and takes away those that the pod does not ask for any more.
// first is the ADD's attachment. If a network cannot be made, an ADD that has made the first attachment (fresh) releases all of them;
// after another ADD, such as one that is repeated, the others stay. begun has the first attachment if that is not taken yet.
func (v *Verbs) join(ctx context.Context, first *attachment.Entry, add *addition, pod ns.Handle, fresh bool, begun besides) error {
	defer v.ChangeNetworks(first.Owner.ID)()
	if !fresh {
		if err := v.part(ctx, first, add.further); err != nil {
			return err
		}
	}
	said, err := v.joinAll(ctx, first, add, pod, begun)
	if err == nil && !said {
		err = v.SayNetworks(ctx, first.Owner.ID, false)
	}
	if err != nil {
		return errors.Join(err, v.undo(ctx, first, fresh))
	}
	return nil
}

// inNetwork says which network an error is about.
func inNetwork(n networks.Network, err error) error {
	var numbered *api.Error
	if errors.As(answer.Numbered(err), &numbered) {
		return cni.Errorf(numbered.Code, numbered.Msg, "%s: %s", n, numbered.Details)
	}
	return err
}

// part releases the further attachments of a pod that are none of its networks. Those that a former CNI made stay: it called them otherwise.
func (v *Verbs) part(ctx context.Context, first *attachment.Entry, stay []networks.Network) error {
	var gone []hold.ID
	for _, e := range v.index.Further(first.Owner.ID) {
		if e.Owner.Wanted() && !e.Record.Former && isOf(e, stay) == nil {
			gone = append(gone, e.Owner.ID)
		}
	}
	if len(gone) == 0 {
		return nil
	}
	return v.Engine.Release(engine.AskedBy(ctx, api.AskedReplaced), gone)
}

// isOf returns the network that an attachment is of; nil: it is of none of them.
func isOf(e *attachment.Entry, all []networks.Network) *networks.Network {
	for i, n := range all {
		if e.Record.Label() == n.Label && e.Record.Ifname == n.Ifname {
			return &all[i]
		}
	}
	return nil
}

// joinAll makes the further networks of an ADD that are not there, and completes those that are. Networks of Berth's own that follow one
// another are made beside each other: their commits are one write, and none hears of another. Plugins of others are executed one after
// the other, and see what comes before them whole, as a network does through which the pod's default routes are to lead. own has what is
// planned already. said says that SayNetworks has told people of all.
func (v *Verbs) joinAll(ctx context.Context, first *attachment.Entry, lead *addition, pod ns.Handle, own besides) (said bool, _ error) {
	joined := 0
	for _, e := range v.index.Further(first.Owner.ID) {
		joined = max(joined, e.Owner.Joined)
	}
	for _, n := range lead.further {
		joined++
		add, err := v.further(ctx, first, lead, n, joined)
		if err == nil && add != nil && own.manner() != add.manner() {
			err = v.takeAll(ctx, &own)
		}
		if err == nil && add != nil {
			err = v.prepare(ctx, add, n, pod, &own)
		}
		if err != nil {
			own.undo()
			return false, inNetwork(n, err)
		}
	}
	if own.manner() == inLine && !own[0].record.Further() {
		return true, v.takeAndSay(ctx, own)
	}
	return false, v.takeAll(ctx, &own)
}

// further returns the addition of a further network, or completes the network if it is there, and returns nil.
func (v *Verbs) further(ctx context.Context, first *attachment.Entry, lead *addition, n networks.Network, joined int) (*addition, error) {
	for _, e := range v.index.Further(first.Owner.ID) {
		if e.Owner.Wanted() && !v.Engine.Doomed(e.Owner.ID) && e.Record.Label() == n.Label && e.Record.Ifname == n.Ifname {
			return nil, v.stands(ctx, e)
		}
	}
	if n.Conf == nil { // a moment ago the pod had it
		return nil, engine.ErrOvertaken
	}
	add := &addition{conf: lead.conf, when: lead.when, record: lead.record, joined: joined}
	add.record.First, add.record.Networks, add.record.Called = first.Owner.ID, nil, ""
	add.record.Network, add.record.Ifname = attachment.FurtherNetwork(n.Label), n.Ifname
	if err := v.madeBy(add, n.Conf); err != nil {
		return nil, err
	}
	if err := v.unled(first, n); err != nil {
		return nil, err
	}
	return add, v.fit(ctx, add)
}

// unled refuses a network that is to have a default route of the pod which another one of the pod's networks has.
func (v *Verbs) unled(first *attachment.Entry, n networks.Network) error {
	for _, e := range append(v.index.Further(first.Owner.ID), first) {
		led := mode.Led(e.Owner)
		for _, g := range n.Conf.Gateways {
			if led.Has(g) && e.Owner.Wanted() && !v.Engine.Doomed(e.Owner.ID) { // the others are waited for (unleading)
				return cni.Errorf(cni.CodeConfig, "two default routes", "default-route is %s, and the pod's network %s as %s has the default route of that family", g, e.Record.Label(), e.Record.Ifname)
			}
		}
	}
	return nil
}

// stands makes sure that a further attachment is complete and can be used.
func (v *Verbs) stands(ctx context.Context, e *attachment.Entry) error {
	if err := v.Engine.Repair(ctx, e.Owner.ID); err != nil {
		return err
	}
	now := v.index.Get(e.Owner.ID)
	if now == nil || !now.Owner.Wanted() {
		return engine.ErrOvertaken
	}
	now, err := v.complete(ctx, now)
	if err != nil {
		return err
	}
	return v.Engine.Settle(ctx, now.Owner)
}

// vacant waits until former attachments have left the place of a further network, and refuses a place that somebody has.
func (v *Verbs) vacant(ctx context.Context, add *addition, pod ns.Handle) error {
	var failed []hold.ID
	var former []*attachment.Entry
	for _, e := range v.index.Slot(add.record.Netns, add.record.Ifname) {
		if v.Engine.Doomed(e.Owner.ID) {
			failed = append(failed, e.Owner.ID)
		} else if e.Owner.Wanted() {
			return cni.Errorf(cni.CodeTaken, "interface exists in the pod", "%s in %s belongs to attachment %s (%s)", add.record.Ifname, add.record.Netns.Path, e.Owner.ID, e.Record.Key)
		}
		former = append(former, e)
	}
	if len(former) == 0 {
		return add.mode.Vacant(add.record, pod)
	}
	if err := v.giveUp(ctx, failed); err != nil {
		return err
	}
	return v.left(ctx, add, former)
}

// giveUp releases attachments of failed ADDs whose release could not be promised yet (doomed). Nobody can wait for a release that is not promised,
// and once it is, it would take what a successor has.
func (v *Verbs) giveUp(ctx context.Context, failed []hold.ID) error {
	return v.Engine.Release(engine.AskedBy(ctx, engine.AskerFailure), failed)
}

// unleading waits until former networks of the pod have given back the default routes that the ADD's network is to have: what they give
// back is what they once put aside for their own, and would take the place of the ADD's.
func (v *Verbs) unleading(ctx context.Context, add *addition) error {
	if len(add.make.Gateways) == 0 {
		return nil
	}
	var failed []hold.ID
	var former []*attachment.Entry
	for _, e := range v.index.Container(add.record.ContainerID) {
		led := mode.Led(e.Owner)
		if !e.At(add.record.Netns, e.Record.Ifname) || !slices.ContainsFunc(add.make.Gateways, led.Has) {
			continue
		}
		if v.Engine.Doomed(e.Owner.ID) {
			failed = append(failed, e.Owner.ID)
		}
		former = append(former, e)
	}
	if err := v.giveUp(ctx, failed); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, FormerPlace)
	defer cancel()
	for _, e := range former {
		if err := v.Engine.WaitKind(ctx, mode.LeadKind, e.Owner.ID); err != nil {
			return fmt.Errorf("waiting until the pod's former network %s as %s has given back the default route: %w", e.Record.Label(), e.Record.Ifname, err)
		}
	}
	return nil
}

// checkFurther returns how the further attachments of a pod differ from what they should be (compare).
func (v *Verbs) checkFurther(ctx context.Context, first *attachment.Entry, netns ns.Ref) (errs []error) {
	for _, e := range v.index.Further(first.Owner.ID) {
		if !e.Owner.Wanted() {
			continue
		}
		m, err := v.modes.Of(e.Record.Mode)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		for _, err := range v.compare(ctx, m, v.seenIn(m, netns, e)) {
			errs = append(errs, fmt.Errorf("network %s as %s: %w", e.Record.Label(), e.Record.Ifname, err))
		}
	}
	return errs
}

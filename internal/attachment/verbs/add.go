package verbs

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
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
	"github.com/berth-net/berth/internal/networks"
	"github.com/berth-net/berth/internal/turn"
)

// FormerPlace is how long an ADD waits until a former attachment, which is being released, has
// left the ADD's place in the pod.
const FormerPlace = 10 * time.Second

// addition is an ADD or a CHECK whose input is valid, or one of the further networks of an ADD.
type addition struct {
	conf    *netconf.Conf // as the runtime has passed it
	make    *netconf.Conf // what the mode gets: conf, unless conf has other plugins make the network
	mode    mode.Mode
	record  attachment.Record
	when    daemon.When
	args    string             // CNI_ARGS
	further []networks.Network // which the pod gets beside this one
	joined  int                // hold.Owner.Joined
}

// Add attaches a container to a network (CNI 1.1, section 4, ADD). An ADD that is repeated
// for the same network namespace gets the same answer. If an ADD is repeated for another network
// namespace, Add releases the old incarnation, once only the making of the new link can still fail.
//
// A runtime must not ADD twice (CNI 1.1, section 2, "Lifecycle & Ordering"). A runtime that
// does so repeats an ADD to which it got no answer, and means that ADD's configuration. So
// Add does not compare the pool, mtu or dns of the present configuration with the
// attachment: a change of the network's configuration is for new pods. But Add refuses a
// repeated ADD that asks for an address or a MAC which the attachment does not have.
func (v *Verbs) Add(ctx context.Context, req api.AddRequest, w daemon.When) (json.RawMessage, error) {
	add, err := v.parse(req, w)
	if err != nil {
		return nil, err
	}
	if err := add.chain(); err != nil {
		return nil, err
	}
	pod, err := v.openNetns(add)
	if err != nil {
		return nil, err
	}
	defer pod.Close()
	unlock, err := v.keys.Take(ctx, add.record.Key)
	if errors.Is(err, turn.ErrCrowded) {
		return nil, cni.Errorf(cni.CodeTryAgain, "an earlier ADD has not ended", "%v", err)
	}
	if err != nil {
		return nil, answer.Numbered(err)
	}
	defer unlock()
	defer v.drain.Adding()()
	if err := v.drain.Key(ctx, add.record.Key); err != nil {
		return nil, cni.Errorf(cni.CodeTryAgain, "the agent could not carry out an earlier deletion", "%v", err)
	}
	if err := v.choose(ctx, add); err != nil {
		return nil, answer.Numbered(err)
	}
	e, former, err := v.standing(ctx, add, pod)
	fresh := err == nil && e == nil
	var begun besides
	if fresh {
		e, begun, err = v.attach(ctx, add, former)
	}
	if err == nil {
		err = v.join(ctx, e, add, pod, fresh, begun)
	}
	if err == nil && fresh {
		e = v.index.Entry(e.Owner, e.Record) // the owner has what its holds have discovered
	}
	if err == nil {
		err = v.notDeleted(ctx, e, fresh)
	}
	if err != nil {
		return nil, answer.Numbered(err)
	}
	what := "attached"
	if !fresh {
		what = "already attached"
	}
	v.trail(what, e.About(), w)
	return mode.EncodeResult(add.mode, e, add.conf)
}

// notDeleted does the queued deletions of the key again, now that the link is there. A
// plugin that queued a deletion before there was a link could cut nothing off, and has
// answered success. If nothing new is in the queue, as is usual, notDeleted costs nothing.
// If it cannot do the deletions, it releases the attachment, provided that this ADD made it
// (fresh).
func (v *Verbs) notDeleted(ctx context.Context, e *attachment.Entry, fresh bool) error {
	if v.drain.Quiet() {
		return nil
	}
	if err := v.drain.Key(ctx, e.Record.Key); err != nil {
		return cni.Errorf(cni.CodeTryAgain, "the agent could not carry out a later deletion", "%v", errors.Join(err, v.undo(ctx, e, fresh)))
	}
	if now := v.index.Get(e.Owner.ID); now == nil || !now.Owner.Wanted() {
		return engine.ErrOvertaken
	}
	return nil
}

// undo releases an attachment, and all that join it, if an ADD that fails has made the attachment (fresh).
func (v *Verbs) undo(ctx context.Context, e *attachment.Entry, fresh bool) error {
	if !fresh {
		return nil
	}
	return v.Engine.Release(engine.AskedBy(context.WithoutCancel(ctx), engine.AskerFailure), []hold.ID{e.Owner.ID})
}

// parse checks the input of an ADD or a CHECK. It changes nothing.
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
		make: conf,
		mode: m,
		when: w,
		args: req.Args,
		record: attachment.Record{
			Key:      attachment.Key{Network: conf.Name, ContainerID: req.ContainerID, Ifname: req.Ifname},
			Netns:    ns.Ref(req.Netns),
			Pod:      args.Pod,
			Mode:     conf.Mode,
			DNS:      types.DNS(conf.DNS),
			Created:  v.Wall(),
			Made:     v.Boottime(),
			Started:  w.Started,
			Epoch:    v.Epoch,
			Networks: conf.Networks,
		},
	}, nil
}

// openNetns opens the pod's network namespace, once for all that ADD asks of the namespace before
// the link's kind makes the link. It refuses a network namespace that is gone, that is not the one
// which the plugin saw at the path, or that is the agent's own. openNetns also completes the
// record: a client of the API may not know the namespace's id, and a record without an id would fit
// a later namespace with the same inode. ADD takes its key's turn only after that: if the path
// hangs, no other ADD of the key waits for it.
func (v *Verbs) openNetns(add *addition) (ns.Handle, error) {
	ref := add.record.Netns
	pod, err := v.open(ref)
	switch {
	case errors.Is(err, ns.ErrNotNetns):
		return nil, cni.Errorf(cni.CodeNetns, "CNI_NETNS is not a network namespace", "%s: %v", ref.Path, err)
	case ns.Passing(err):
		return nil, cni.Errorf(cni.CodeTryAgain, "CNI_NETNS cannot be opened", "%s: %v", ref.Path, err)
	case err != nil:
		return nil, cni.Errorf(cni.CodeNetns, "CNI_NETNS cannot be used", "%s: %v", ref.Path, err)
	}
	if v.Netns.Same(pod.Ref()) {
		pod.Close()
		return nil, cni.Errorf(cni.CodeNetns, "CNI_NETNS is the node's own network namespace", "%s: a pod needs one of its own", ref.Path)
	}
	add.record.Netns.ID = cmp.Or(ref.ID, pod.Ref().ID)
	return pod, nil
}

// standing returns the attachment that an ADD repeats, or nil if it repeats none. old are
// the attachments of the ADD's key that stand elsewhere, which a new attachment replaces: standing
// leaves them alone, because the ADD can still be refused. standing releases failed ADDs of the
// key, and a failed ADD that has this ADD's place in the pod, and waits until former attachments
// have left that place. pod is the ADD's network namespace, open.
func (v *Verbs) standing(ctx context.Context, add *addition, pod ns.Handle) (_ *attachment.Entry, old []*attachment.Entry, err error) {
	var failed []hold.ID
	var former []*attachment.Entry
	mayBeThere := false // an interface in the ADD's place, which belongs to an attachment in old
	named, _ := v.named(ctx, add)
	for _, e := range named {
		if !e.Owner.Wanted() {
			continue
		}
		if v.Engine.Doomed(e.Owner.ID) { // e is of a failed ADD, and the release of e could not be promised yet
			failed, former = append(failed, e.Owner.ID), append(former, e)
			continue
		}
		if e.At(add.record.Netns, add.record.Ifname) {
			if e.Record.Former { // its network only has the same name
				return nil, nil, cni.Errorf(cni.CodeTaken, "interface exists in the pod", "a former CNI has made %s in %s, which is attachment %s: DEL it first",
					add.record.Ifname, add.record.Netns.Path, e.Owner.ID)
			}
			if err := sameChain(e, add.make); err != nil {
				return nil, nil, err
			}
			if v.incomplete(e) == nil { // otherwise nobody can tell before it is complete (whole)
				if err := asWished(e, add.make); err != nil {
					return nil, nil, err
				}
			}
			if add.mode, err = v.modes.Of(e.Record.Mode); err != nil { // the mode in the configuration is for new pods
				return nil, nil, err
			}
			e, err := v.again(ctx, e, add)
			return e, nil, err
		}
		if !e.Record.BeganBefore(v.Epoch, add.when.Started) {
			return nil, nil, cni.Errorf(cni.CodeTryAgain, "a later ADD of the same attachment overtook this one",
				"the ADD of %s, in %s, began later", e.Owner.ID, e.Record.Netns.Path)
		}
		old = append(old, e)
		mayBeThere = mayBeThere || !e.Record.KnowsNetns()
	}
	if err := v.fit(ctx, add); err != nil {
		return nil, nil, err
	}
	for _, e := range v.index.Slot(add.record.Netns, add.record.Ifname) {
		if e.Owner.Wanted() { // a deletion of e, which a plugin has promised, may wait
			if err := v.drain.Key(ctx, e.Record.Key); err != nil {
				return nil, nil, cni.Errorf(cni.CodeTryAgain, "the agent could not carry out an earlier deletion", "%v", err)
			}
		}
		if v.Engine.Doomed(e.Owner.ID) {
			failed = append(failed, e.Owner.ID)
		} else if now := v.index.Get(e.Owner.ID); now != nil && now.Owner.Wanted() {
			return nil, nil, cni.Errorf(cni.CodeTaken, "interface exists in the pod",
				"%s in %s belongs to attachment %s (%s)", add.record.Ifname, add.record.Netns.Path, e.Owner.ID, e.Record.Key)
		}
		former = append(former, e)
	}
	if len(former) == 0 && !mayBeThere { // otherwise the interface there may be a former attachment's
		if err := add.mode.Vacant(add.record, pod); err != nil {
			return nil, nil, err
		}
	}
	if err := v.giveUp(ctx, failed); err != nil {
		return nil, nil, err
	}
	return nil, old, v.left(ctx, add, former)
}

// left waits until former attachments, which may have the ADD's place in the pod, have left it.
func (v *Verbs) left(ctx context.Context, add *addition, former []*attachment.Entry) error {
	ctx, cancel := context.WithTimeout(ctx, FormerPlace)
	defer cancel()
	for _, e := range former {
		m, err := v.modes.Of(e.Record.Mode)
		if err == nil {
			err = v.Engine.WaitKind(ctx, m.Place(), e.Owner.ID) // whatever else e owes does not keep this ADD waiting
		}
		if err != nil {
			return fmt.Errorf("waiting until the former interface %s in %s is gone: %w", add.record.Ifname, add.record.Netns.Path, err)
		}
	}
	return nil
}

// attach plans a new incarnation, which replaces old, and has the engine take it. Nothing of old
// goes before the addresses of the new incarnation are claimed. If other plugins make the network, attach leaves the taking to join (begun): what
// comes next is prepared while they run.
func (v *Verbs) attach(ctx context.Context, add *addition, old []*attachment.Entry) (_ *attachment.Entry, begun besides, _ error) {
	for _, e := range old {
		if err := elsewhere(e, add.make); err != nil {
			return nil, nil, err
		}
	}
	p, err := v.planned(ctx, add)
	if err != nil {
		return nil, nil, err
	}
	if len(old) > 0 {
		if err := v.replace(ctx, add, old, p.unburied); err != nil {
			p.undo()
			return nil, nil, err
		}
	}
	if add.manner() == inLine {
		return v.index.Entry(p.owner, p.record), besides{{planned: p}}, nil
	}
	e, err := v.take(ctx, p)
	return e, nil, err
}

// planned is an addition for which all names are chosen, and nothing is made yet.
type planned struct {
	*addition
	owner    hold.Owner
	undo     func()    // gives the names back, if the owner does not get into the ledger
	unburied ledger.Op // refuses an ADD that a DEL has overtaken
}

// planned plans an addition to a node that has all that it needs.
func (v *Verbs) planned(ctx context.Context, add *addition) (p planned, err error) {
	if err := v.unleading(ctx, add); err != nil {
		return planned{}, err
	}
	p = planned{addition: add, unburied: ledger.Unburied(add.record.Key.String(), v.Boot, add.record.Started)}
	if p.owner, p.undo, err = v.plan(ctx, add); err != nil {
		return p, err
	}
	if err := v.equipped(ctx, add); err != nil { // a reload may have given the pool this address meanwhile
		p.undo()
		return p, err
	}
	return p, nil
}

// take makes what is planned.
func (v *Verbs) take(ctx context.Context, p planned) (*attachment.Entry, error) {
	if err := v.returned(ctx, p.addition); err != nil {
		p.undo()
		return nil, err
	}
	err := v.Engine.Take(ctx, p.owner, p.unburied)
	var refused *engine.RefusedError
	if errors.As(err, &refused) {
		p.undo()
	}
	if err != nil {
		return nil, err
	}
	p.mode.Taken(p.owner)
	e, err := v.complete(ctx, v.index.Entry(p.owner, p.record)) // the owner has what its holds have discovered
	if err != nil {
		return nil, errors.Join(err, v.undo(ctx, e, true))
	}
	return e, nil
}

// elsewhere refuses an ADD that asks for an address or a host port of an attachment that the ADD
// would replace: the address has to rest before another link can have it, and the port leads to the
// other pod until that pod is gone.
func elsewhere(e *attachment.Entry, c *netconf.Conf) error {
	for _, addr := range c.IPs {
		if slices.Contains(e.Interface.Addresses, addr) {
			return cni.Errorf(cni.CodeTaken, "address not available",
				"%s is already attached as %s in %s with address %s: DEL it first", e.Record.Key, e.Owner.ID, e.Record.Netns.Path, addr)
		}
	}
	for _, p := range mode.Mappings(c.Ports, e.Interface.Addresses) {
		if slices.ContainsFunc(e.Interface.Ports, p.SamePort) {
			return cni.Errorf(cni.CodeTaken, "host port not available",
				"%s is already attached as %s in %s with host port %s %s: DEL it first", e.Record.Key, e.Owner.ID, e.Record.Netns.Path, p.Protocol, p.Host)
		}
	}
	return nil
}

// replace releases attachments that stand elsewhere, for an attachment that is about to be taken.
// The commit also makes the checks that the new attachment's commit makes: the old attachments must
// not go for an ADD that a DEL has overtaken (unburied), or for which the disk has no room.
func (v *Verbs) replace(ctx context.Context, add *addition, old []*attachment.Entry, unburied ledger.Op) error {
	var ids []hold.ID
	var former []*attachment.Entry
	for _, e := range old {
		ids = append(ids, e.Owner.ID)
		if !e.Record.KnowsNetns() { // the pod of e may be this ADD's, and the interface of e may be in the ADD's place
			former = append(former, e)
		}
	}
	if err := v.Engine.Release(engine.AskedBy(ctx, api.AskedReplaced), ids, unburied, ledger.Room()); err != nil {
		return err
	}
	return v.left(ctx, add, former)
}

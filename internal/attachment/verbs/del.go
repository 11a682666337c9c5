package verbs

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/answer"
	"github.com/berth-net/berth/internal/attachment"
	"github.com/berth-net/berth/internal/cni"
	"github.com/berth-net/berth/internal/daemon"
	"github.com/berth-net/berth/internal/engine"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/ledger"
	"github.com/berth-net/berth/internal/turn"
)

// Delete releases every attachment that a filter matches and whose ADD began before this
// request. A DEL that names a whole key also leaves a tombstone in the same commit: the tombstone
// refuses an older ADD of that key that is still on its way. If the DEL names a link as well, the
// link does not choose among the attachments of the key: the runtime may know only the result of an
// earlier ADD, or a wrong one, and means what it has attached last. The link serves to find an
// attachment that the ledger lacks. Delete looks for such an attachment only if the DEL names
// nothing beyond key and link: whether an address, a pod or its uid matches such an attachment,
// nobody can tell.
//
// If the DEL's process began before an ADD, and became the plugin after that ADD began,
// nobody can tell whether the DEL was asked for before the ADD or after it. So Delete fails, and
// does not release that ADD's attachment. The runtime repeats the DEL, and the new
// process has begun after the ADD. If such an ADD is still on its way, the tombstone
// refuses it.
//
// known is false if the filter matches no attachment, not even one that is being released.
func (v *Verbs) Delete(ctx context.Context, f api.Filter, wait bool, w daemon.When) (d api.Deleted, known bool, err error) {
	ctx = engine.AskedBy(ctx, api.AskedDelete)
	var grave []ledger.Op
	key, whole := keyOf(f)
	link, ask := f.Link, unasked
	if whole {
		grave = append(grave, ledger.Bury(v.tombstone(key, w)))
		f.Link, ask = "", v.drain.Asked
	}
	// The first round releases the attachments that are in the ledger now, together
	// with the tombstone. The second round releases attachments that came into the ledger between
	// the look and the tombstone. No attachment of the key can come in after the tombstone.
	var all []hold.ID
	seen := going{}
	for range 2 {
		fresh, err := v.release(ctx, ask, func() []*attachment.Entry {
			return seen.add(slices.DeleteFunc(v.deletable(f, w), func(e *attachment.Entry) bool { return slices.Contains(all, e.Owner.ID) }))
		}, grave...)
		if err != nil {
			return api.Deleted{}, true, answer.Numbered(err)
		}
		all = append(all, fresh...)
		grave = nil
	}
	if exact(f) {
		// The link may lead to a pod that the ledger lacks.
		more, err := v.drain.Unknown(ctx, key, link, w.Started, all)
		if err != nil {
			return api.Deleted{}, true, answer.Numbered(err)
		}
		all = union(all, more)
	}
	if whole {
		if e := v.unsure(f, w); e != nil {
			return api.Deleted{}, true, cni.Errorf(cni.CodeTryAgain, cni.MsgUnsure,
				"the ADD of %s began after this DEL's process started, but before that process ran the plugin: repeat DEL", e.Owner.ID)
		}
	}
	if len(all) == 0 {
		if whole {
			v.drain.WarnUnsure(key)
		}
		v.trail("nothing to detach", aboutFilter(f), w)
		return api.Deleted{}, false, nil
	}
	d = v.deleted(ctx, all, wait)
	v.trailOf("detached", all, seen, w)
	return d, true, nil
}

// DeleteOne releases one incarnation.
func (v *Verbs) DeleteOne(ctx context.Context, id hold.ID, wait bool, w daemon.When) (api.Deleted, bool, error) {
	e := v.index.Get(id)
	if e == nil {
		return api.Deleted{}, false, nil
	}
	if err := v.Engine.Release(engine.AskedBy(ctx, api.AskedRelease), []hold.ID{id}); err != nil {
		return api.Deleted{}, true, answer.Numbered(err)
	}
	d := v.deleted(ctx, []hold.ID{id}, wait)
	v.trail("detached", e.About(), w)
	return d, true, nil
}

// deleted answers a deletion whose promise is written. If wait is set, deleted answers when
// everything is gone, or when the client's time is up; otherwise at once, or after whilePod if something in the pods has
// to be given back.
func (v *Verbs) deleted(ctx context.Context, ids []hold.ID, wait bool) api.Deleted {
	all := v.withFurther(ids)
	switch {
	case wait:
		v.wait(ctx, all)
	case slices.ContainsFunc(all, v.needsPod):
		ctx, cancel := context.WithTimeout(ctx, whilePod)
		defer cancel()
		aside, over, _ := turn.Aside(ctx)
		defer over()
		_ = v.Engine.Tried(aside, all...) // no error if the time is up: the promise stands
	}
	return api.Deleted{Released: len(ids), Owed: v.owes(all)}
}

// whilePod is how long a DEL waits until other plugins' DELs have been tried. The runtime removes the pod's network namespace after
// the answer. A plugin that hangs keeps a DEL no longer; then it is told that the namespace is gone.
const whilePod = 8 * time.Second

// needsPod reports whether an attachment's release needs the pod's network namespace.
func (v *Verbs) needsPod(id hold.ID) bool {
	e := v.index.Get(id)
	if e == nil {
		return false
	}
	m, err := v.modes.Of(e.Record.Mode)
	return err == nil && m.NeedsPod(e.Owner)
}

// withFurther returns first attachments and those that join them.
func (v *Verbs) withFurther(ids []hold.ID) []hold.ID {
	all := slices.Clone(ids)
	for _, id := range ids {
		for _, e := range v.index.Further(id) {
			if !slices.Contains(ids, e.Owner.ID) {
				all = append(all, e.Owner.ID)
			}
		}
	}
	return all
}

// wait waits until attachments are gone, or until ctx ends: the promise stands. A release may be
// owed for ever, so the waiting request gives back its place to other deletions. If too many
// requests wait so, or if the agent is stopping, wait waits only until all that can be released
// has been tried once.
func (v *Verbs) wait(ctx context.Context, ids []hold.ID) {
	aside, over, keeps := turn.Aside(ctx)
	defer over()
	if keeps || v.Engine.Wait(aside, ids...) != nil {
		_ = v.Engine.Tried(ctx, ids...) // Tried returns at once if ctx has ended
	}
}

// deletable returns the attachments that a deletion is about.
func (v *Verbs) deletable(f api.Filter, w daemon.When) []*attachment.Entry {
	return slices.DeleteFunc(v.matching(f), func(e *attachment.Entry) bool { return !e.Record.BeganBefore(v.Epoch, w.Started) })
}

// unsure returns an attachment that a deletion's filter matches, if nobody can tell whether the
// deletion was asked for before the attachment's ADD or after that ADD. It returns nil if there is
// none.
func (v *Verbs) unsure(f api.Filter, w daemon.When) *attachment.Entry {
	for _, e := range v.matching(f) {
		if r := e.Record; e.Owner.Wanted() && !r.BeganBefore(v.Epoch, w.Started) && r.BeganBefore(v.Epoch, w.Latest()) {
			return e
		}
	}
	return nil
}

// matching returns the attachments that a deletion's filter matches, whenever their ADD began.
func (v *Verbs) matching(f api.Filter) []*attachment.Entry {
	k, whole := keyOf(f)
	if !whole {
		return v.index.Matching(f)
	}
	es, _ := v.index.Called(k) // the key in the record may lack its end
	f.Network, f.Container, f.Ifname = "", "", ""
	return slices.DeleteFunc(es, func(e *attachment.Entry) bool { return !e.Matches(f) })
}

// unasked is drain.Asked for deletions that no plugin asks for: nobody has cut off a pod whose release the
// ledger cannot promise, and the agent goes on mending the pod's link.
func unasked([]hold.ID) (answered func(error)) { return func(error) {} }

// release promises the release of the attachments that find returns, with ops in the same
// commit, and returns their ids. It calls ask (drain.Asked) with the ids before that. If a repeated ADD
// has been answered with one of them since find looked, release calls find again: that ADD may have begun
// after the deletion.
func (v *Verbs) release(ctx context.Context, ask func([]hold.ID) func(error), find func() []*attachment.Entry, ops ...ledger.Op) ([]hold.ID, error) {
	for {
		var ids []hold.ID
		commit := slices.Clone(ops)
		for _, e := range find() {
			ids = append(ids, e.Owner.ID)
			commit = append(commit, ledger.Unchanged(e.Owner))
		}
		if len(commit) == 0 {
			return nil, nil
		}
		answered := ask(ids)
		err := v.Engine.Release(ctx, ids, commit...)
		if errors.Is(err, ledger.ErrChanged) {
			answered(nil)
			continue
		}
		answered(err)
		return ids, err
	}
}

// union returns the ids of both lists, each once.
func union(all, more []hold.ID) []hold.ID {
	return append(all, slices.DeleteFunc(more, func(id hold.ID) bool { return slices.Contains(all, id) })...)
}

// keyOf returns the key that a filter names. It returns false if the filter names only a part of a
// key.
func keyOf(f api.Filter) (attachment.Key, bool) {
	k := attachment.Key{Network: f.Network, ContainerID: f.Container, Ifname: f.Ifname}
	return k, k.Network != "" && k.ContainerID != "" && k.Ifname != ""
}

// exact reports whether a filter names a key, and nothing beyond it and a link.
func exact(f api.Filter) bool {
	k, whole := keyOf(f)
	return whole && f == api.Filter{Network: k.Network, Container: k.ContainerID, Ifname: k.Ifname, Link: f.Link}
}

// tombstone returns the tombstone of a deletion. The tombstone refuses each ADD of the key that
// began no later than w.Latest, and lasts as long as such an ADD may still be on its way.
func (v *Verbs) tombstone(k attachment.Key, w daemon.When) ledger.Tombstone {
	return ledger.Tombstone{Key: k.String(), Boot: v.Boot, Started: w.Latest(), Until: w.Latest() + int64(daemon.LongestRequest)}
}

package verbs

import (
	"context"
	"errors"
	"slices"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/answer"
	"github.com/berth-net/berth/internal/attachment"
	"github.com/berth-net/berth/internal/cni"
	"github.com/berth-net/berth/internal/daemon"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/ledger"
)

// Delete releases every attachment that a filter matches and whose ADD began
// before this request. A DEL that names a key also leaves a tombstone in the
// same commit, so that an ADD of that key which is older than it, and still on
// its way, is refused. If it names a link as well, that chooses nobody of the key:
// a runtime may know the result of an earlier ADD alone, or a wrong one, and means
// what it has attached last. The link serves to find what the ledger lacks.
//
// A DEL whose process began before an ADD, and became the plugin after it, may have been
// asked for before that ADD or behind it: it releases nobody, fails, and is to be
// repeated, which a new process tells. If the ADD is still on its way, it is refused.
//
// known is false if nothing matched, now or lately.
func (v *Verbs) Delete(ctx context.Context, f api.Filter, wait bool, w daemon.When) (d api.Deleted, known bool, err error) {
	var grave []ledger.Op
	key, whole := keyOf(f)
	link := f.Link
	if whole {
		grave = append(grave, ledger.Bury(v.tombstone(key, w)))
		f.Link = ""
	}
	// Who is in the ledger now goes with the tombstone. Who came in before the
	// tombstone and after the look goes in the second round; none can after it.
	var all []hold.ID
	for range 2 {
		fresh, err := v.release(ctx, func() []*attachment.Entry {
			return slices.DeleteFunc(v.deletable(f, w), func(e *attachment.Entry) bool { return slices.Contains(all, e.Owner.ID) })
		}, grave...)
		if err != nil {
			return api.Deleted{}, true, answer.Numbered(err)
		}
		all = append(all, fresh...)
		grave = nil
	}
	if whole {
		// A pod that only its link and its runtime know of.
		more, err := v.drain.Unknown(ctx, key, link, w.Started, all)
		if err != nil {
			return api.Deleted{}, true, answer.Numbered(err)
		}
		all = union(all, more)
		if e := v.unsure(key, w); e != nil {
			return api.Deleted{}, true, cni.Errorf(cni.CodeTryAgain, cni.MsgUnsure,
				"%s: its ADD began after this DEL's process, and before that became the plugin: repeat DEL", e.Owner.ID)
		}
	}
	if len(all) == 0 {
		if whole {
			v.drain.WarnUnsure(key)
		}
		return api.Deleted{}, false, nil
	}
	return v.deleted(ctx, all, wait), true, nil
}

// DeleteOne releases one incarnation.
func (v *Verbs) DeleteOne(ctx context.Context, id hold.ID, wait bool, _ daemon.When) (api.Deleted, bool, error) {
	if v.index.Get(id) == nil {
		return api.Deleted{}, false, nil
	}
	if err := v.Engine.Release(ctx, []hold.ID{id}); err != nil {
		return api.Deleted{}, true, answer.Numbered(err)
	}
	return v.deleted(ctx, []hold.ID{id}, wait), true, nil
}

// deleted answers a deletion whose promise is written: at once, or when all is
// gone or the asker's time is up.
func (v *Verbs) deleted(ctx context.Context, ids []hold.ID, wait bool) api.Deleted {
	if wait {
		_ = v.Engine.Wait(ctx, ids...) // out of time is no error: the promise stands
	}
	d := api.Deleted{Released: len(ids)}
	for _, id := range ids {
		d.Owed += len(v.Engine.Owed(id))
	}
	return d
}

// deletable returns the attachments that a deletion is about.
func (v *Verbs) deletable(f api.Filter, w daemon.When) []*attachment.Entry {
	es := v.index.Matching(f)
	if k, whole := keyOf(f); whole {
		f.Network, f.Container, f.Ifname = "", "", ""
		es, _ = v.index.Called(k)
		es = slices.DeleteFunc(es, func(e *attachment.Entry) bool { return !e.Matches(f) })
	}
	return slices.DeleteFunc(es, func(e *attachment.Entry) bool { return !e.Record.BeganBefore(v.Epoch, w.Started) })
}

// unsure returns an attachment of a key of which it cannot be told whether a deletion
// was asked for before its ADD or behind it.
func (v *Verbs) unsure(k attachment.Key, w daemon.When) *attachment.Entry {
	es, _ := v.index.Called(k)
	for _, e := range es {
		if r := e.Record; e.Owner.Wanted() && !r.BeganBefore(v.Epoch, w.Started) && r.BeganBefore(v.Epoch, w.Latest()) {
			return e
		}
	}
	return nil
}

// release promises the release of the attachments that find returns, with ops in
// the same commit, and returns who they are. If an ADD has been answered with one
// of them in between, find has to look again: that ADD may have begun later.
func (v *Verbs) release(ctx context.Context, find func() []*attachment.Entry, ops ...ledger.Op) ([]hold.ID, error) {
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
		if err := v.Engine.Release(ctx, ids, commit...); !errors.Is(err, ledger.ErrChanged) {
			return ids, err
		}
	}
}

// union returns the ids of both, each once.
func union(all, more []hold.ID) []hold.ID {
	return append(all, slices.DeleteFunc(more, func(id hold.ID) bool { return slices.Contains(all, id) })...)
}

// keyOf returns the key that a filter names in full.
func keyOf(f api.Filter) (attachment.Key, bool) {
	k := attachment.Key{Network: f.Network, ContainerID: f.Container, Ifname: f.Ifname}
	return k, k.Network != "" && k.ContainerID != "" && k.Ifname != ""
}

// tombstone says that no ADD of a key may be executed that began before w ran. It
// stands for as long as such an ADD may still be on its way.
func (v *Verbs) tombstone(k attachment.Key, w daemon.When) ledger.Tombstone {
	return ledger.Tombstone{Key: k.String(), Boot: v.Boot, Started: w.Latest(), Until: w.Latest() + int64(daemon.LongestRequest)}
}

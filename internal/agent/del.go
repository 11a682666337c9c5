package agent

import (
	"context"
	"errors"
	"slices"

	"github.com/berth-net/berth/internal/stamp"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/attachment"
	"github.com/berth-net/berth/internal/deletions"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/ledger"
	"github.com/berth-net/berth/internal/server"
)

// Delete releases every attachment that a filter matches and whose ADD began
// before this request. A DEL that names a key also leaves a tombstone in the
// same commit, so that an ADD of that key which is older than it, and still on
// its way, is refused. If it names a link as well, that chooses nobody of the key:
// a runtime may know the result of an earlier ADD alone, or a wrong one, and means
// what it has attached last. The link serves to find what the ledger lacks.
//
// known is false if nothing matched, now or lately.
func (a *Agent) Delete(ctx context.Context, f api.Filter, wait bool, w server.When) (d api.Deleted, known bool, err error) {
	var grave []ledger.Op
	key, whole := keyOf(f)
	link := f.Link
	if whole {
		grave = append(grave, ledger.Bury(a.tombstone(key, w)))
		f.Link = ""
	}
	// Who is in the ledger now goes with the tombstone. Who came in before the
	// tombstone and after the look goes in the second round; none can after it.
	var all []hold.ID
	for range 2 {
		fresh, err := a.release(ctx, func() []*entry {
			return slices.DeleteFunc(a.deletable(f, w), func(e *entry) bool { return slices.Contains(all, e.owner.ID) })
		}, grave...)
		if err != nil {
			return api.Deleted{}, true, answer(err)
		}
		all = append(all, fresh...)
		grave = nil
	}
	if id, named := stamp.LinkID(link); whole && named && !slices.Contains(all, id) {
		// A pod that only its link and its runtime know of.
		more, err := a.promise(ctx, a.deletionOf(key, link, w))
		if err := errors.Join(err, a.engine.Depart(ctx, more)); err != nil {
			return api.Deleted{}, true, answer(err)
		}
		all = union(all, more)
	}
	if len(all) == 0 {
		if whole {
			a.warnUnsure(key)
		}
		return api.Deleted{}, false, nil
	}
	return a.deleted(ctx, all, wait), true, nil
}

// warnUnsure tells people of a deletion that nobody is released by, since its key is
// that of several pods, for all that is known.
func (a *Agent) warnUnsure(k attachment.Key) {
	if _, unsure := a.index.called(k); unsure {
		a.Log.Warn("a deletion releases nobody: the ledger was lost, and several pods' names begin so; each is released with its network namespace",
			"key", k)
	}
}

// deletionOf is a DEL as the queue would have it.
func (a *Agent) deletionOf(k attachment.Key, link string, w server.When) deletions.Record {
	return deletions.Record{
		Network: k.Network, Container: k.ContainerID, Ifname: k.Ifname,
		Link: link, Boot: a.boot, Started: w.Started,
	}
}

// DeleteOne releases one incarnation.
func (a *Agent) DeleteOne(ctx context.Context, id hold.ID, wait bool, _ server.When) (api.Deleted, bool, error) {
	if a.index.get(id) == nil {
		return api.Deleted{}, false, nil
	}
	if err := a.engine.Release(ctx, []hold.ID{id}); err != nil {
		return api.Deleted{}, true, answer(err)
	}
	return a.deleted(ctx, []hold.ID{id}, wait), true, nil
}

// deleted answers a deletion whose promise is written: at once, or when all is
// gone or the asker's time is up.
func (a *Agent) deleted(ctx context.Context, ids []hold.ID, wait bool) api.Deleted {
	if wait {
		_ = a.engine.Wait(ctx, ids...) // out of time is no error: the promise stands
	}
	d := api.Deleted{Released: len(ids)}
	for _, id := range ids {
		d.Owed += len(a.engine.Owed(id))
	}
	return d
}

// deletable returns the attachments that a deletion is about.
func (a *Agent) deletable(f api.Filter, w server.When) []*entry {
	es := a.matching(f)
	if k, whole := keyOf(f); whole {
		f.Network, f.Container, f.Ifname = "", "", ""
		es, _ = a.index.called(k)
		es = slices.DeleteFunc(es, func(e *entry) bool { return !matches(e, f) })
	}
	return slices.DeleteFunc(es, func(e *entry) bool { return !e.record.BeganBefore(a.epoch, w.Started) })
}

// release promises the release of the attachments that find returns, with ops in
// the same commit, and returns who they are. If an ADD has been answered with one
// of them in between, find has to look again: that ADD may have begun later.
func (a *Agent) release(ctx context.Context, find func() []*entry, ops ...ledger.Op) ([]hold.ID, error) {
	for {
		var ids []hold.ID
		commit := slices.Clone(ops)
		for _, e := range find() {
			ids = append(ids, e.owner.ID)
			commit = append(commit, ledger.Unchanged(e.owner))
		}
		if len(commit) == 0 {
			return nil, nil
		}
		if err := a.engine.Release(ctx, ids, commit...); !errors.Is(err, ledger.ErrChanged) {
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

// tombstone says that no ADD of a key may be executed that began before w. It
// stands for as long as such an ADD may still be on its way.
func (a *Agent) tombstone(k attachment.Key, w server.When) ledger.Tombstone {
	return ledger.Tombstone{Key: k.String(), Boot: a.boot, Started: w.Started, Until: w.Started + int64(longestAdd)}
}

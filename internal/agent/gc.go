package agent

import (
	"context"
	"slices"
	"time"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/attachment"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/server"
)

// firstTries is how long a GC waits for the outcome of the first tries, to
// answer what is owed.
const firstTries = 5 * time.Second

// GC releases the attachments of one network that are not in the list of valid
// ones (CNI 1.1, section 4, GC). Whatever began after the request is spared,
// since the list cannot know it. All of them are tried, whatever fails of some;
// what is owed by those that were released before is tried again. The answer
// says what is owed then.
func (a *Agent) GC(ctx context.Context, req api.GCRequest, w server.When) (api.Deleted, error) {
	valid := make(map[api.GCValid]bool, len(req.Valid))
	for _, v := range req.Valid {
		valid[v] = true
	}
	mayBeValid := func(e *entry) bool { // its key may lack an end
		s, short := e.short()
		return short && slices.ContainsFunc(req.Valid, func(v api.GCValid) bool {
			return s.Is(attachment.Key{Network: req.Network, ContainerID: v.ContainerID, Ifname: v.Ifname})
		})
	}
	var going []hold.ID
	d := api.Deleted{}
	find := func() (left []*entry) {
		going, d.IDs = nil, nil
		for _, e := range a.matching(api.Filter{Network: req.Network}) {
			r := e.record
			switch {
			case !e.owner.Wanted():
				going = append(going, e.owner.ID)
			case valid[api.GCValid{ContainerID: r.ContainerID, Ifname: r.Ifname}], mayBeValid(e),
				!r.BeganBefore(a.epoch, w.Started), r.YoungerThan(req.MinAge, a.boot, a.boottime()):
			default:
				left = append(left, e)
				d.IDs = append(d.IDs, string(e.owner.ID))
			}
		}
		slices.Sort(d.IDs)
		return left
	}
	if req.DryRun {
		find()
		d.Owed = a.owes(going)
		return d, nil
	}
	left, err := a.release(ctx, find)
	if len(going) > 0 {
		a.engine.Retry(going...)
	}
	waiting, cancel := context.WithTimeout(ctx, firstTries)
	defer cancel()
	_ = a.engine.Tried(waiting, append(left, going...)...) // out of time is no error: the promise stands
	if err != nil {
		return api.Deleted{}, answer(err)
	}
	d.Released, d.Owed = len(left), a.owes(left)+a.owes(going)
	return d, nil
}

// owes counts the holds that attachments owe.
func (a *Agent) owes(ids []hold.ID) int {
	n := 0
	for _, id := range ids {
		n += len(a.engine.Owed(id))
	}
	return n
}

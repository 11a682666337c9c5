package verbs

import (
	"context"
	"slices"
	"time"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/answer"
	"github.com/berth-net/berth/internal/attachment"
	"github.com/berth-net/berth/internal/daemon"
	"github.com/berth-net/berth/internal/engine"
	"github.com/berth-net/berth/internal/hold"
)

// firstTries is how long a GC waits until everything has been tried once, so that it can
// answer how much is owed.
const firstTries = 5 * time.Second

// GC releases the attachments of one network that are not in the list of valid ones (CNI
// 1.1, section 4, GC). GC spares an attachment whose ADD began after the request, because the list
// cannot have the attachment, and an attachment that is younger than the request's MinAge. If some
// releases fail, GC tries the others all the same. GC also tries again what attachments owe that
// were being released before the request. The answer says how much is owed after these tries.
//
// GC leaves what a former CNI made alone (Record.Former), also if that network has the same name: the list has the attachments that the
// runtime knows of the new network. Such an attachment goes by DEL, by `berth release`, by a reboot, or when its network namespace
// is gone.
func (v *Verbs) GC(ctx context.Context, req api.GCRequest, w daemon.When) (api.Deleted, error) {
	valid := make(map[api.GCValid]bool, len(req.Valid))
	for _, v := range req.Valid {
		valid[v] = true
	}
	mayBeValid := func(e *attachment.Entry) bool { // the key in the record may lack its end
		return slices.ContainsFunc(req.Valid, func(v api.GCValid) bool {
			return e.MayBe(attachment.Key{Network: req.Network, ContainerID: v.ContainerID, Ifname: v.Ifname})
		})
	}
	var leaving []hold.ID
	seen := going{}
	d := api.Deleted{}
	find := func() (left []*attachment.Entry) {
		leaving, d.IDs = nil, nil
		for _, e := range v.index.Matching(api.Filter{Network: req.Network}) {
			r := e.Record
			switch {
			case r.Further(), r.Former: // it goes with the first one; by its pod's DEL alone
			case !e.Owner.Wanted():
				leaving = append(leaving, e.Owner.ID)
			case valid[api.GCValid{ContainerID: r.ContainerID, Ifname: r.Ifname}], mayBeValid(e),
				!r.BeganBefore(v.Epoch, w.Started), r.YoungerThan(req.MinAge, v.Boot, v.Boottime()):
			default:
				left = append(left, e)
				d.IDs = append(d.IDs, string(e.Owner.ID))
			}
		}
		slices.Sort(d.IDs)
		return seen.add(left)
	}
	if req.DryRun {
		find()
		d.Owed = v.owes(v.withFurther(leaving))
		return d, nil
	}
	left, err := v.release(engine.AskedBy(ctx, api.AskedGC), unasked, find)
	leaving = v.withFurther(leaving)
	if len(leaving) > 0 {
		v.Engine.Retry(leaving...)
	}
	waiting, cancel := context.WithTimeout(ctx, firstTries)
	defer cancel()
	all := append(v.withFurther(left), leaving...)
	_ = v.Engine.Tried(waiting, all...) // no error if the time is up: the promise stands
	if err != nil {
		return api.Deleted{}, answer.Numbered(err)
	}
	v.trailOf("detached by GC", left, seen, w)
	d.Released, d.Owed = len(left), v.owes(all)
	return d, nil
}

// owes counts what attachments owe.
func (v *Verbs) owes(ids []hold.ID) int {
	n := 0
	for _, id := range ids {
		n += len(v.Engine.Owed(id))
	}
	return n
}

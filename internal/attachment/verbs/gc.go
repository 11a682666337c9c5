package verbs

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/answer"
	"github.com/berth-net/berth/internal/attachment"
	"github.com/berth-net/berth/internal/daemon"
	"github.com/berth-net/berth/internal/engine"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/mode"
	"github.com/berth-net/berth/internal/turn"
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
//
// At last GC has other plugins give back what belongs to no attachment of theirs in the ledger (collect). GC answers with the errors of
// these plugins, once it has tried all.
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
	if err := v.collect(ctx, req); err != nil {
		return api.Deleted{}, answer.Numbered(err)
	}
	d.Released, d.Owed = len(left), v.owes(all)
	return d, nil
}

// collect passes GC on to the plugins of all networks that others make, or give addresses to. What they spare is what the ledger has, and never the
// runtime's list, which has only first attachments. But if the runtime has an attachment that the ledger lacks, or the ledger has lacked one
// that was found in the kernel, then pods may have networks of which nobody knows: a lost ledger, or a former CNI whose pods were not adopted. Then
// collect asks no plugin, since they would take the addresses of pods that live.
func (v *Verbs) collect(ctx context.Context, req api.GCRequest) error {
	if why := v.unsureOf(req); why != "" {
		v.Log.Warn("GC is not passed on to other plugins: they might take away what pods have", "network", req.Network, "reason", why)
		return nil
	}
	aside, over, _ := turn.Aside(ctx)
	defer over()
	owners := func() (all []hold.Owner) {
		for _, e := range v.index.All() {
			all = append(all, e.Owner)
		}
		return all
	}
	var errs []error
	for _, m := range v.modes {
		if x, ok := m.(mode.Collector); ok {
			words, err := x.Collect(aside, owners)
			for _, w := range words {
				v.Log.Info("GC of another plugin", "what", w)
			}
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// unsureOf returns why the ledger may lack networks of pods; "": it lacks none.
func (v *Verbs) unsureOf(req api.GCRequest) string {
	for _, e := range v.index.All() {
		if e.Record.Adopted {
			return fmt.Sprintf("the ledger lacked attachment %s (%s)", e.Owner.ID, e.Record.Key)
		}
	}
	for _, a := range req.Valid {
		known := slices.ContainsFunc(v.index.Container(a.ContainerID), func(e *attachment.Entry) bool { return e.Record.Ifname == a.Ifname })
		if !known {
			return fmt.Sprintf("the ledger lacks %s of container %s, which is valid", a.Ifname, a.ContainerID)
		}
	}
	return ""
}

// owes counts what attachments owe.
func (v *Verbs) owes(ids []hold.ID) int {
	n := 0
	for _, id := range ids {
		n += len(v.Engine.Owed(id))
	}
	return n
}

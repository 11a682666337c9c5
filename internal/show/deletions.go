package show

import (
	"slices"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/deletions"
	"github.com/berth-net/berth/internal/stamp"
)

// Deletions shows a survey of the deletion queue. err is the error of the survey; pod returns the
// pod that the ledger has for a key, or nil.
func Deletions(s deletions.Survey, err error, pod func(stamp.Key) *api.Pod) api.Deletions {
	d := api.Deletions{Queued: []api.QueuedDeletion{}, Damaged: []api.DamagedDeletion{}, Spares: s.Spares}
	if err != nil {
		d.Error = err.Error()
	}
	for _, e := range s.Pending {
		r := e.Record
		d.Queued = append(d.Queued, api.QueuedDeletion{
			Name: e.Name, Network: r.Network, ContainerID: r.Container, Ifname: r.Ifname, Pod: pod(r.Key()), Link: r.Link,
			Addresses: r.Addresses, Netns: r.Netns, Written: e.Written, Cut: r.Cut, Reason: r.Reason,
		})
	}
	for _, f := range s.Damaged {
		d.Damaged = append(d.Damaged, api.DamagedDeletion{Name: f.Name, Since: f.Since, Error: f.Err.Error()})
	}
	return d
}

// DeletionCount counts what a survey of the deletion queue has found. err is the error of the survey.
func DeletionCount(s deletions.Survey, err error) api.DeletionCount {
	d := Deletions(s, err, func(stamp.Key) *api.Pod { return nil })
	n := api.DeletionCount{Queued: len(d.Queued), Damaged: len(d.Damaged), Spares: d.Spares, Error: d.Error}
	for _, q := range ByAttachment(d.Queued) {
		n.Attachments++
		if !q.Cut {
			n.Uncut++
		}
	}
	return n
}

// ByAttachment returns one deletion for each attachment: a runtime repeats a DEL, and the plugin queues
// each DEL. The one deletion is the first one of the attachment, with the reason of the last. It says
// that the attachment is cut off if any of the attachment's deletions says so.
func ByAttachment(queued []api.QueuedDeletion) (all []api.QueuedDeletion) {
	queued = slices.Clone(queued)
	slices.SortStableFunc(queued, func(x, y api.QueuedDeletion) int { return x.Written.Compare(y.Written) })
	at := map[stamp.Key]int{}
	for _, q := range queued {
		k := stamp.Key{Network: q.Network, ContainerID: q.ContainerID, Ifname: q.Ifname}
		if i, ok := at[k]; ok {
			all[i].Cut = all[i].Cut || q.Cut
			all[i].Reason = q.Reason
			continue
		}
		at[k] = len(all)
		all = append(all, q)
	}
	return all
}

package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/attachment"
	"github.com/berth-net/berth/internal/deletions"
	"github.com/berth-net/berth/internal/engine"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/patience"
	"github.com/berth-net/berth/internal/show"
)

// Owed lists what could not be released yet, and deletions that wait.
func (a *Agent) Owed() api.OwedList {
	list := api.OwedList{Holds: []api.OwedHold{}, Deletions: a.deletions()}
	for _, o := range a.engine.Owed("") {
		view := api.OwedHold{Owed: owedView(o)}
		if e := a.index.get(o.Hold.Owner); e != nil {
			r := e.record
			view.Network, view.ContainerID, view.Ifname, view.Pod = r.Network, r.ContainerID, r.Ifname, r.Pod
		}
		list.Holds = append(list.Holds, view)
	}
	return list
}

func owedView(o engine.Owed) api.Owed {
	view := api.Owed{
		Owner: string(o.Hold.Owner), Kind: "ledger", What: "record " + string(o.Hold.Owner),
		Since: o.Since, Tries: o.Tries, Next: o.Next, Error: o.Err.Error(),
	}
	if o.Hold.Spec != nil {
		view.Kind, view.What = o.Hold.Spec.Kind(), o.Hold.Spec.String()
	}
	return view
}

func (a *Agent) deletions() api.Deletions {
	s, err := a.surveyQueue()
	return show.Deletions(s, err)
}

// surveyQueue is deletions.Look, for as long as a person waits.
func (a *Agent) surveyQueue() (deletions.Survey, error) {
	s, err := patience.Call(&a.queue.calls, "survey", lookLimit, func() (deletions.Survey, error) { return deletions.Look(a.Root) }, nil)
	if err == patience.ErrHangs {
		err = fmt.Errorf("looking at %s: %w", deletions.Path(a.Root), err)
	}
	return s, err
}

func (a *Agent) deletionCount() api.DeletionCount {
	s, err := a.surveyQueue()
	n := api.DeletionCount{Queued: len(s.Pending), Damaged: len(s.Damaged), Spares: s.Spares}
	if err != nil {
		n.Error = err.Error()
	}
	return n
}

// RetryOwed tries what is owed now: of the owners with these ids, or all of it,
// queued deletions as well.
func (a *Agent) RetryOwed(_ context.Context, ids []hold.ID) (api.Retried, error) {
	tried := api.Retried{Holds: a.engine.Retry(ids...)}
	if len(ids) > 0 {
		return tried, nil
	}
	s, err := a.surveyQueue()
	if err != nil {
		return tried, answer(err)
	}
	tried.Deletions = len(s.Pending)
	select {
	case a.queue.news <- struct{}{}: // keepDrained tries them
	default: // and is about to
	}
	return tried, nil
}

// stale is how long a deletion may wait before an audit finds it: the agent has
// to have done it long before.
const stale = time.Minute

// late reports whether a deletion has waited for longer than stale. That of an
// earlier boot has been tried at the start. One of this boot was written as late
// as longestAdd after its DEL began, which nothing but the wall clock can tell.
func (a *Agent) late(e deletions.Entry) bool {
	if e.Record.Boot != a.boot {
		return true
	}
	age := time.Duration(a.boottime() - e.Record.Started)
	return age > longestAdd+stale || age > stale && a.wall().Sub(e.Written) > stale
}

// undeleted says which deletions wait in vain.
func (a *Agent) undeleted() []api.Finding {
	s, err := a.surveyQueue()
	d := show.Deletions(s, err)
	var fs []api.Finding
	if d.Error != "" {
		fs = append(fs, api.Finding{Type: api.FindingUnreadable, Kind: "deletion", What: deletions.Path(a.Root), Detail: d.Error})
	}
	for i, q := range d.Queued {
		if a.late(s.Pending[i]) {
			key := attachment.Key{Network: q.Network, ContainerID: q.ContainerID, Ifname: q.Ifname}
			fs = append(fs, api.Finding{Type: api.FindingQueued, Kind: "deletion", Of: "container " + q.ContainerID, What: q.Name,
				Detail: fmt.Sprintf("the deletion of %s waits since %s", key, q.Written.UTC().Format(time.RFC3339))})
		}
	}
	for _, f := range d.Damaged {
		fs = append(fs, api.Finding{Type: api.FindingDamaged, Kind: "deletion", What: f.Name, Detail: f.Error})
	}
	return fs
}

// whose says to people whose something is: a pod's, a container's, a pool's or
// the node's; "" of what has no owner.
func (a *Agent) whose(id hold.ID) string {
	if e := a.index.get(id); e != nil {
		if p := e.record.Pod; p != nil && p.Name != "" {
			return "pod " + p.Namespace + "/" + p.Name
		}
		return "container " + e.record.ContainerID
	}
	o, ok := a.ledger.Owner(id)
	var rec nodeRecord
	if !ok || json.Unmarshal(o.Meta, &rec) != nil {
		return ""
	}
	if rec.Sort == poolSort {
		return "pool " + rec.Pool
	}
	return "node"
}

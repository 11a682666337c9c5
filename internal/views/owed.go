package views

import (
	"context"
	"fmt"
	"time"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/attachment"
	"github.com/berth-net/berth/internal/cni"
	"github.com/berth-net/berth/internal/daemon"
	"github.com/berth-net/berth/internal/deletions"
	"github.com/berth-net/berth/internal/engine"
	"github.com/berth-net/berth/internal/ground"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/show"
)

// Owed lists what could not be released yet, and the deletions that wait.
func (v *Views) Owed() api.OwedList {
	return api.OwedList{Holds: v.OwedHolds(), Deletions: v.deletions()}
}

// OwedHolds lists the holds that could not be released yet, the longest owed first.
func (v *Views) OwedHolds() []api.OwedHold {
	holds := []api.OwedHold{}
	for _, o := range v.Engine.Owed("") {
		view := api.OwedHold{Owed: owedView(o)}
		if e := v.index.Get(o.Hold.Owner); e != nil {
			r := e.Record
			view.Network, view.ContainerID, view.Ifname, view.Pod = r.Network, r.ContainerID, r.Ifname, r.Pod
		}
		holds = append(holds, view)
	}
	return holds
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

func (v *Views) deletions() api.Deletions {
	all, err := v.drain.Survey()
	return show.Deletions(all, err, v.podOf)
}

// podOf returns the pod of the attachment of a key; nil if the ledger knows none.
func (v *Views) podOf(k attachment.Key) *api.Pod {
	for _, e := range v.index.Key(k) {
		if e.Record.Pod != nil {
			return e.Record.Pod
		}
	}
	return nil
}

func (v *Views) deletionCount() api.DeletionCount {
	all, err := v.drain.Survey()
	n := show.DeletionCount(all, err)
	n.Filling = v.drain.Filling()
	return n
}

// RetryOwed tries now, instead of later, what the owners with these ids owe. Without ids it
// tries all that is owed, and the queued deletions as well.
func (v *Views) RetryOwed(_ context.Context, ids []hold.ID) (api.Retried, error) {
	tried := api.Retried{Holds: v.Engine.Retry(ids...)}
	if len(ids) > 0 {
		return tried, nil
	}
	all, err := v.drain.Survey()
	if err != nil {
		return tried, cni.Errorf(cni.CodeInternal, "failed", "%v", err)
	}
	tried.Deletions = len(all.Pending)
	v.drain.Soon()
	return tried, nil
}

// Stale is how long a queued deletion may wait. An audit finds deletions that have waited for
// longer, because the agent should have done them long before.
const Stale = time.Minute

// late reports whether a deletion has waited for longer than Stale. A deletion of an
// earlier boot is late at once, because the agent has tried it at its start. A deletion of
// this boot may have been written up to daemon.LongestRequest after its DEL began. Until
// that time and Stale have passed, only the wall clock can tell how long the deletion has
// waited.
func (v *Views) late(e deletions.Entry) bool {
	if e.Record.Boot != v.Boot {
		return true
	}
	age := time.Duration(v.Boottime() - e.Record.Started)
	return age > daemon.LongestRequest+Stale || age > Stale && v.Wall().Sub(e.Written) > Stale
}

// undeleted returns a finding for each deletion that is late or damaged, and one if the
// queue cannot be read.
func (v *Views) undeleted() []api.Finding {
	all, err := v.drain.Survey()
	d := show.Deletions(all, err, v.podOf)
	var fs []api.Finding
	if d.Error != "" {
		fs = append(fs, api.Finding{Type: api.FindingUnreadable, Kind: "deletion", What: deletions.Path(v.Root), Detail: d.Error})
	}
	for i, q := range d.Queued {
		if v.late(all.Pending[i]) {
			key := attachment.Key{Network: q.Network, ContainerID: q.ContainerID, Ifname: q.Ifname}
			fs = append(fs, api.Finding{Type: api.FindingQueued, Kind: "deletion", Of: "container " + q.ContainerID, What: q.Name,
				Detail: fmt.Sprintf("the deletion of %s has been waiting since %s", key, q.Written.UTC().Format(time.RFC3339))})
		}
	}
	for _, f := range d.Damaged {
		fs = append(fs, api.Finding{Type: api.FindingDamaged, Kind: "deletion", What: f.Name, Detail: f.Error})
	}
	return fs
}

// whose tells people to what an owner belongs: to a pod, a container, a pool or the node.
// It returns "" if the ledger has no such owner.
func (v *Views) whose(id hold.ID) string {
	if e := v.index.Get(id); e != nil {
		if p := e.Record.Pod; p != nil && p.Name != "" {
			return "pod " + p.Namespace + "/" + p.Name
		}
		return "container " + e.Record.ContainerID
	}
	if o, ok := v.Core.Ledger.Owner(id); ok {
		return ground.Whose(o)
	}
	return ""
}

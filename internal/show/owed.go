package show

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
)

// Owed lists what could not be released yet, and the deletions that wait.
func (s *Show) Owed() api.OwedList {
	list := api.OwedList{Holds: []api.OwedHold{}, Deletions: s.deletions()}
	for _, o := range s.Engine.Owed("") {
		view := api.OwedHold{Owed: owedView(o)}
		if e := s.index.Get(o.Hold.Owner); e != nil {
			r := e.Record
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

func (s *Show) deletions() api.Deletions {
	all, err := s.drain.Survey()
	return Deletions(all, err)
}

func (s *Show) deletionCount() api.DeletionCount {
	all, err := s.drain.Survey()
	n := api.DeletionCount{Queued: len(all.Pending), Damaged: len(all.Damaged), Spares: all.Spares}
	if err != nil {
		n.Error = err.Error()
	}
	return n
}

// RetryOwed tries now, instead of later, what the owners with these ids owe. Without ids it
// tries all that is owed, and the queued deletions as well.
func (s *Show) RetryOwed(_ context.Context, ids []hold.ID) (api.Retried, error) {
	tried := api.Retried{Holds: s.Engine.Retry(ids...)}
	if len(ids) > 0 {
		return tried, nil
	}
	all, err := s.drain.Survey()
	if err != nil {
		return tried, cni.Errorf(cni.CodeInternal, "failed", "%v", err)
	}
	tried.Deletions = len(all.Pending)
	s.drain.Soon()
	return tried, nil
}

// Stale is how long a queued deletion may wait. An audit finds those that have waited for
// longer, because the agent should have done them long before.
const Stale = time.Minute

// late reports whether a deletion has waited for longer than Stale. A deletion of an
// earlier boot is late at once, because the agent has tried it at its start. A deletion of
// this boot may have been written up to daemon.LongestRequest after its DEL began. Until
// that time and Stale have passed, only the wall clock can tell how long the deletion has
// waited.
func (s *Show) late(e deletions.Entry) bool {
	if e.Record.Boot != s.Boot {
		return true
	}
	age := time.Duration(s.Boottime() - e.Record.Started)
	return age > daemon.LongestRequest+Stale || age > Stale && s.Wall().Sub(e.Written) > Stale
}

// undeleted returns a finding for each deletion that is late or damaged, and one if the
// queue cannot be read.
func (s *Show) undeleted() []api.Finding {
	all, err := s.drain.Survey()
	d := Deletions(all, err)
	var fs []api.Finding
	if d.Error != "" {
		fs = append(fs, api.Finding{Type: api.FindingUnreadable, Kind: "deletion", What: deletions.Path(s.Root), Detail: d.Error})
	}
	for i, q := range d.Queued {
		if s.late(all.Pending[i]) {
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

// whose tells people to what an owner belongs: to a pod, a container, a pool or the node.
// It returns "" if the ledger has no such owner.
func (s *Show) whose(id hold.ID) string {
	if e := s.index.Get(id); e != nil {
		if p := e.Record.Pod; p != nil && p.Name != "" {
			return "pod " + p.Namespace + "/" + p.Name
		}
		return "container " + e.Record.ContainerID
	}
	if o, ok := s.Core.Ledger.Owner(id); ok {
		return ground.Whose(o)
	}
	return ""
}

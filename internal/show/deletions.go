package show

import (
	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/deletions"
)

// Deletions shows a survey of the deletion queue. err is the error of the survey.
func Deletions(s deletions.Survey, err error) api.Deletions {
	d := api.Deletions{Queued: []api.QueuedDeletion{}, Damaged: []api.DamagedDeletion{}, Spares: s.Spares}
	if err != nil {
		d.Error = err.Error()
	}
	for _, e := range s.Pending {
		r := e.Record
		d.Queued = append(d.Queued, api.QueuedDeletion{
			Name: e.Name, Network: r.Network, ContainerID: r.Container, Ifname: r.Ifname, Link: r.Link,
			Addresses: r.Addresses, Netns: r.Netns, Written: e.Written, Cut: r.Cut, Reason: r.Reason,
		})
	}
	for _, f := range s.Damaged {
		d.Damaged = append(d.Damaged, api.DamagedDeletion{Name: f.Name, Since: f.Since, Error: f.Err.Error()})
	}
	return d
}

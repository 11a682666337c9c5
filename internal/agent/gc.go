package agent

import (
	"context"
	"time"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/server"
)

// GC releases the attachments of one network that are not in the list of valid
// ones (CNI 1.1, section 4, GC). Whatever began after the request is spared,
// since the list cannot know it.
func (a *Agent) GC(ctx context.Context, req api.GCRequest, w server.When) (api.Deleted, error) {
	valid := make(map[api.GCValid]bool, len(req.Valid))
	for _, v := range req.Valid {
		valid[v] = true
	}
	var ids []hold.ID
	for _, e := range a.matching(api.Filter{Network: req.Network}) {
		r := e.record
		if valid[api.GCValid{ContainerID: r.ContainerID, Ifname: r.Ifname}] || !e.owner.Wanted() ||
			!r.BeganBefore(a.epoch, w.Started) || time.Since(r.Created) < req.MinAge {
			continue
		}
		ids = append(ids, e.owner.ID)
	}
	if len(ids) == 0 {
		return api.Deleted{}, nil
	}
	if err := a.engine.Release(ctx, ids); err != nil {
		return api.Deleted{}, answer(err)
	}
	return a.deleted(ctx, ids, false)
}

package routes

import (
	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/cni"
	"github.com/berth-net/berth/internal/daemon/server"
	"github.com/berth-net/berth/internal/hold"
)

func (a *agent) owed(r *server.Request) (*server.Answer, error) {
	return server.OK(owedLists(a.verbs.Owed()))
}

// owedLists replaces lists that the agent left nil by empty ones.
func owedLists(l api.OwedList) api.OwedList {
	l.Holds = listed(l.Holds)
	l.Deletions.Queued, l.Deletions.Damaged = listed(l.Deletions.Queued), listed(l.Deletions.Damaged)
	return l
}

// maxRetries is how many owners a request to try again may name.
const maxRetries = 1000

func (a *agent) retryOwed(r *server.Request) (*server.Answer, error) {
	var req api.RetryRequest
	if err := r.Body(&req); err != nil {
		return nil, err
	}
	if len(req.IDs) > maxRetries {
		return nil, cni.Errorf(cni.CodeConfig, "too many ids", "there are %d; expected at most %d, or none to try all that is owed", len(req.IDs), maxRetries)
	}
	var ids []hold.ID
	for _, text := range req.IDs {
		id, err := hold.ParseID(text)
		if err != nil {
			return nil, badID(err)
		}
		ids = append(ids, id)
	}
	tried, err := a.verbs.RetryOwed(r.Ctx, ids)
	if err != nil {
		return nil, err
	}
	return server.OK(tried)
}

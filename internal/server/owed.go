package server

import (
	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/cni"
	"github.com/berth-net/berth/internal/hold"
)

func (s *Server) owed(r *request) (*answer, error) {
	if _, err := parseQuery(r.http); err != nil {
		return nil, err
	}
	return ok(owedLists(s.verbs.Owed()))
}

// owedLists makes what an agent did not fill in empty lists.
func owedLists(l api.OwedList) api.OwedList {
	l.Holds = listed(l.Holds)
	l.Deletions.Queued, l.Deletions.Damaged = listed(l.Deletions.Queued), listed(l.Deletions.Damaged)
	return l
}

// maxRetries is how many owners a request to try again may name.
const maxRetries = 1000

func (s *Server) retryOwed(r *request) (*answer, error) {
	if _, err := parseQuery(r.http); err != nil {
		return nil, err
	}
	var req api.RetryRequest
	if err := readBody(r.w, r.http, &req); err != nil {
		return nil, err
	}
	if len(req.IDs) > maxRetries {
		return nil, cni.Errorf(cni.CodeConfig, "too many ids", "%d; expected %d or fewer, or none for all", len(req.IDs), maxRetries)
	}
	var ids []hold.ID
	for _, text := range req.IDs {
		id, err := hold.ParseID(text)
		if err != nil {
			return nil, badID(err)
		}
		ids = append(ids, id)
	}
	tried, err := s.verbs.RetryOwed(r.ctx, ids)
	if err != nil {
		return nil, err
	}
	return ok(tried)
}

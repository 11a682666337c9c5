package server

import (
	"errors"
	"net/http"

	"github.com/berth-net/berth/api"
)

func (s *Server) pools(r *request) (*answer, error) {
	if _, err := parseQuery(r.http); err != nil {
		return nil, err
	}
	return ok(listed(s.verbs.Pools()))
}

func (s *Server) ledger(r *request) (*answer, error) {
	if _, err := parseQuery(r.http); err != nil {
		return nil, err
	}
	l := s.verbs.Ledger()
	l.Owners, l.Resting, l.Tombstones = listed(l.Owners), listed(l.Resting), listed(l.Tombstones)
	return ok(l)
}

func (s *Server) audit(r *request) (*answer, error) {
	q, e := parseQuery(r.http, "pods")
	if e != nil {
		return nil, e
	}
	pods, e := q.flag("pods")
	if e != nil {
		return nil, e
	}
	look := s.verbs.Audit
	if pods {
		look = s.verbs.AuditPods
	}
	audit, err := look(r.ctx)
	if err != nil {
		return nil, err
	}
	audit.Findings = listed(audit.Findings)
	return ok(audit)
}

// status answers at once, also while the ledger is being restored.
func (s *Server) status(r *request) (*answer, error) {
	q, e := parseQuery(r.http, "pool")
	if e != nil {
		return nil, e
	}
	if pool, found := q["pool"]; found {
		if e := printable(api.MaxID)(pool); e != nil {
			return nil, badParameter("pool", pool, "a pool's name")
		}
	}
	st, err := s.verbs.Status(r.ctx, q["pool"])
	st.Restoring = !s.queue.isOpen()
	st.Pools = listed(st.Pools)
	if st.Attachments == nil {
		st.Attachments = map[string]int{}
	}
	var cannot *api.Error
	if errors.As(err, &cannot) {
		return &answer{statusOf(cannot.Code), api.StatusError{Error: *cannot, Status: &st}}, nil
	}
	if err != nil {
		return nil, err
	}
	return ok(st)
}

// health answers 200 whenever the server runs: what serving says is for
// readiness, not for killing an agent that restores.
func (s *Server) health(r *request) (*answer, error) {
	if _, err := parseQuery(r.http); err != nil {
		return nil, err
	}
	return ok(api.Health{Serving: s.queue.isOpen()})
}

func serveOpenAPI(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/yaml")
	_, _ = w.Write(api.OpenAPI) // a client that left needs no answer
}

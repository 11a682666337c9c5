package server

import (
	"context"
	"encoding/json"
	"net/http"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/cni"
	"github.com/berth-net/berth/internal/hold"
)

// Verbs is what the agent can do. Their contexts end shortly before the
// request's deadline, so that there is time to answer. Errors that are (or
// wrap) an *api.Error are answered as they are, others have code 999, and
// those of the context 11. All may be called at once.
//
// None but Status is called before Server.Open.
type Verbs interface {
	// Add answers the CNI result in the version of the request's config.
	Add(ctx context.Context, req api.AddRequest, w When) (json.RawMessage, error)
	Check(ctx context.Context, req api.AddRequest, w When) error
	GC(ctx context.Context, req api.GCRequest, w When) (api.Deleted, error)
	List(f api.Filter) []api.Attachment
	Get(id hold.ID) (api.Attachment, bool)
	// Delete and DeleteOne say whether anything was known to delete. Their
	// context does not end when the client leaves.
	Delete(ctx context.Context, f api.Filter, wait bool, w When) (d api.Deleted, known bool, err error)
	DeleteOne(ctx context.Context, id hold.ID, wait bool, w When) (d api.Deleted, known bool, err error)
	// Status is filled in also when an error of code 50 or 51 says that no
	// attachment can be made. Restoring is the server's to say.
	Status(ctx context.Context, pool string) (api.Status, error)
	Pools() []api.Pool
	Ledger() api.Ledger
	Audit(ctx context.Context) (api.Audit, error)
	// AuditPods is Audit, with a look into the pods.
	AuditPods(ctx context.Context) (api.Audit, error)
	Owed() api.OwedList
	// RetryOwed tries now what the owners with these ids owe; all, if there are
	// none. One that owes nothing is no error.
	RetryOwed(ctx context.Context, ids []hold.ID) (api.Retried, error)
}

// request is a call's input.
type request struct {
	ctx  context.Context
	w    http.ResponseWriter // for limits on reading
	http *http.Request
	id   string // of the path
	when When
}

func (s *Server) add(r *request) (*answer, error) {
	if _, err := parseQuery(r.http); err != nil {
		return nil, err
	}
	req, err := readAdd(r.w, r.http)
	if err != nil {
		return nil, err
	}
	result, err := s.verbs.Add(r.ctx, req, r.when)
	if err != nil {
		return nil, err
	}
	return ok(result)
}

func (s *Server) check(r *request) (*answer, error) {
	if _, err := parseQuery(r.http); err != nil {
		return nil, err
	}
	req, err := readAdd(r.w, r.http)
	if err != nil {
		return nil, err
	}
	if err := s.verbs.Check(r.ctx, req, r.when); err != nil {
		return nil, err
	}
	return ok(struct{}{})
}

func (s *Server) gc(r *request) (*answer, error) {
	if _, err := parseQuery(r.http); err != nil {
		return nil, err
	}
	req, err := readGC(r.w, r.http)
	if err != nil {
		return nil, err
	}
	d, err := s.verbs.GC(r.ctx, req, r.when)
	return deleted(d, true, err)
}

func (s *Server) list(r *request) (*answer, error) {
	q, e := parseQuery(r.http, listParameters...)
	if e != nil {
		return nil, e
	}
	f, e := q.filter()
	if e != nil {
		return nil, e
	}
	return ok(listed(s.verbs.List(f)))
}

func (s *Server) get(r *request) (*answer, error) {
	if _, err := parseQuery(r.http); err != nil {
		return nil, err
	}
	id, err := hold.ParseID(r.id)
	if err != nil {
		return nil, badID(err)
	}
	a, known := s.verbs.Get(id)
	if !known {
		return nil, unknown("%s is not in the ledger", id)
	}
	return ok(a)
}

func (s *Server) delete(r *request) (*answer, error) {
	q, e := parseQuery(r.http, deletionParameters...)
	if e != nil {
		return nil, e
	}
	f, e := q.deletion()
	if e != nil {
		return nil, e
	}
	wait, e := q.flag("wait")
	if e != nil {
		return nil, e
	}
	d, known, err := s.verbs.Delete(r.ctx, f, wait, r.when)
	return deleted(d, known, err)
}

func (s *Server) deleteOne(r *request) (*answer, error) {
	q, e := parseQuery(r.http, "wait")
	if e != nil {
		return nil, e
	}
	id, err := hold.ParseID(r.id)
	if err != nil {
		return nil, badID(err)
	}
	wait, e := q.flag("wait")
	if e != nil {
		return nil, e
	}
	d, known, err := s.verbs.DeleteOne(r.ctx, id, wait, r.when)
	return deleted(d, known, err)
}

// listed makes no list an empty one: JSON readers expect [], not null.
func listed[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}

// deleted answers a deletion: 206 says that something is owed.
func deleted(d api.Deleted, known bool, err error) (*answer, error) {
	switch {
	case err != nil:
		return nil, err
	case !known:
		return nil, unknown("nothing that the request names is in the ledger")
	case d.Owed > 0:
		return &answer{http.StatusPartialContent, d}, nil
	}
	return ok(d)
}

func unknown(details string, args ...any) *api.Error {
	return cni.Errorf(cni.CodeUnknown, "no such attachment", details, args...)
}

func badID(err error) *api.Error {
	return cni.Errorf(cni.CodeEnv, "invalid attachment id", "%v", err)
}

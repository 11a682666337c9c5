package routes

import (
	"context"
	"encoding/json"
	"net/http"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/attachment"
	"github.com/berth-net/berth/internal/cni"
	"github.com/berth-net/berth/internal/daemon/server"
	"github.com/berth-net/berth/internal/hold"
)

// Verbs is what the agent can do. A verb's context ends shortly before the request's
// deadline, so that there is time to answer. The client gets an error that is (or wraps) an
// *api.Error as it is, a context's error with code 11, and any other error with code 999.
// Verbs may be called at the same time.
//
// Before Server.Open only Status, Ready, ClusterPods and History are called.
type Verbs interface {
	// Add returns the CNI result in the CNI version of the request's config.
	Add(ctx context.Context, req api.AddRequest, w server.When) (json.RawMessage, error)
	Check(ctx context.Context, req api.AddRequest, w server.When) error
	GC(ctx context.Context, req api.GCRequest, w server.When) (api.Deleted, error)
	// Adopt adopts what a former CNI of the node has attached. Its context does not end when the client leaves.
	Adopt(ctx context.Context, req api.AdoptRequest) (api.Adopted, error)
	List(f api.Filter) []api.Attachment
	Get(id hold.ID) (api.Attachment, bool)
	// Delete and DeleteOne return in known whether there was anything to delete. Their
	// context does not end when the client leaves.
	Delete(ctx context.Context, f api.Filter, wait bool, w server.When) (d api.Deleted, known bool, err error)
	DeleteOne(ctx context.Context, id hold.ID, wait bool, w server.When) (d api.Deleted, known bool, err error)
	// Status returns a complete status also with an error of code 50 or 51, which says that
	// no attachment can be made. The server sets Restoring.
	Status(ctx context.Context, pool string) (api.Status, error)
	// Ready returns an error of code 50 or 51 if a network that a configuration gives to each pod is not ready.
	Ready(ctx context.Context, req api.StatusRequest) error
	Pools() []api.Pool
	Ledger() api.Ledger
	Audit(ctx context.Context) (api.Audit, error)
	// AuditPods is Audit, with a look into the pods.
	AuditPods(ctx context.Context) (api.Audit, error)
	Owed() api.OwedList
	// Health shows which nodes of the cluster the node reaches.
	Health() api.ClusterHealth
	// ClusterPods asks the cluster's API server which pods this node has.
	ClusterPods(ctx context.Context) (api.ClusterPods, error)
	// History reads what became of attachments.
	History(f api.PastFilter) api.PastReader
	// RetryOwed tries at once to release what the owners with these ids owe or, without
	// ids, what all owners owe. An id whose owner owes nothing is no error.
	RetryOwed(ctx context.Context, ids []hold.ID) (api.Retried, error)
}

func (a *agent) add(r *server.Request) (*server.Answer, error) {
	req, err := readAdd(r)
	if err != nil {
		return nil, err
	}
	result, err := a.verbs.Add(r.Ctx, req, r.When)
	if err != nil {
		return nil, err
	}
	return server.OK(result)
}

func (a *agent) check(r *server.Request) (*server.Answer, error) {
	req, err := readAdd(r)
	if err != nil {
		return nil, err
	}
	if err := a.verbs.Check(r.Ctx, req, r.When); err != nil {
		return nil, err
	}
	return server.OK(struct{}{})
}

func (a *agent) gc(r *server.Request) (*server.Answer, error) {
	req, err := readGC(r)
	if err != nil {
		return nil, err
	}
	d, err := a.verbs.GC(r.Ctx, req, r.When)
	return deleted(d, true, err)
}

func (a *agent) adopt(r *server.Request) (*server.Answer, error) {
	req, err := readAdopt(r)
	if err != nil {
		return nil, err
	}
	d, err := a.verbs.Adopt(r.Ctx, req)
	if err != nil {
		return nil, err
	}
	return server.OK(d)
}

func (a *agent) list(r *server.Request) (*server.Answer, error) {
	f, err := filter(r.Query)
	if err != nil {
		return nil, err
	}
	return server.OK(listed(a.verbs.List(f)))
}

func (a *agent) get(r *server.Request) (*server.Answer, error) {
	id, err := hold.ParseID(r.ID)
	if err != nil {
		return nil, badID(err)
	}
	at, known := a.verbs.Get(id)
	if !known {
		return nil, unknown("%s is not in the ledger", id)
	}
	return server.OK(at)
}

func (a *agent) delete(r *server.Request) (*server.Answer, error) {
	f, err := deletion(r.Query)
	if err != nil {
		return nil, err
	}
	r.About(func() []any {
		return attachment.AboutKey(attachment.Key{Network: f.Network, ContainerID: f.Container, Ifname: f.Ifname}, &api.Pod{Namespace: f.Namespace, Name: f.Pod})
	})
	wait, err := r.Query.Flag("wait")
	if err != nil {
		return nil, err
	}
	d, known, err := a.verbs.Delete(r.Ctx, f, wait, r.When)
	return deleted(d, known, err)
}

func (a *agent) deleteOne(r *server.Request) (*server.Answer, error) {
	id, err := hold.ParseID(r.ID)
	if err != nil {
		return nil, badID(err)
	}
	wait, err := r.Query.Flag("wait")
	if err != nil {
		return nil, err
	}
	r.About(func() []any { return []any{"id", id} })
	d, known, err := a.verbs.DeleteOne(r.Ctx, id, wait, r.When)
	return deleted(d, known, err)
}

// listed replaces a nil list by an empty one: JSON readers expect [], not null.
func listed[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}

// deleted answers a deletion: 206 says that something is owed.
func deleted(d api.Deleted, known bool, err error) (*server.Answer, error) {
	switch {
	case err != nil:
		return nil, err
	case !known:
		return nil, unknown("nothing that the request names is in the ledger")
	case d.Owed > 0:
		return &server.Answer{Status: http.StatusPartialContent, Value: d}, nil
	}
	return server.OK(d)
}

func unknown(details string, args ...any) *api.Error {
	return cni.Errorf(cni.CodeUnknown, "no such attachment", details, args...)
}

func badID(err error) *api.Error {
	return cni.Errorf(cni.CodeEnv, "invalid attachment id", "%v", err)
}

package routes

import (
	"errors"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/cni"
	"github.com/berth-net/berth/internal/daemon/server"
)

func (a *agent) pools(r *server.Request) (*server.Answer, error) {
	return server.OK(listed(a.verbs.Pools()))
}

func (a *agent) nodes(r *server.Request) (*server.Answer, error) {
	h := a.verbs.Health()
	h.Addresses, h.Probes = listed(h.Addresses), listed(h.Probes)
	return server.OK(h)
}

func (a *agent) clusterPods(r *server.Request) (*server.Answer, error) {
	p, err := a.verbs.ClusterPods(r.Ctx)
	if err != nil {
		return nil, err
	}
	p.Pods = listed(p.Pods)
	return server.OK(p)
}

func (a *agent) ledger(r *server.Request) (*server.Answer, error) {
	l := a.verbs.Ledger()
	l.Owners, l.Resting, l.Tombstones = listed(l.Owners), listed(l.Resting), listed(l.Tombstones)
	return server.OK(l)
}

func (a *agent) audit(r *server.Request) (*server.Answer, error) {
	pods, err := r.Query.Flag("pods")
	if err != nil {
		return nil, err
	}
	look := a.verbs.Audit
	if pods {
		look = a.verbs.AuditPods
	}
	audit, err := look(r.Ctx)
	if err != nil {
		return nil, err
	}
	audit.Findings = listed(audit.Findings)
	return server.OK(audit)
}

// status answers at once, also while the ledger is being restored.
// ready answers a STATUS that is also about the networks of a configuration.
func (a *agent) ready(r *server.Request) (*server.Answer, error) {
	var req api.StatusRequest
	if err := r.Body(&req, "config"); err != nil {
		return nil, err
	}
	head, e := cni.ParseHead(req.Config)
	if e != nil {
		return nil, e
	}
	if _, err := a.verbs.Status(r.Ctx, head.Pool); err != nil {
		return nil, err
	}
	if err := a.verbs.Ready(r.Ctx, req); err != nil {
		return nil, err
	}
	return server.OK(struct{}{})
}

func (a *agent) status(r *server.Request) (*server.Answer, error) {
	if pool, found := r.Query["pool"]; found {
		if e := printable(api.MaxID)(pool); e != nil {
			return nil, server.BadParameter("pool", pool, "a pool's name")
		}
	}
	st, err := a.verbs.Status(r.Ctx, r.Query["pool"])
	st.Restoring = r.Restoring()
	st.Pools = listed(st.Pools)
	if st.Attachments == nil {
		st.Attachments = map[string]int{}
	}
	var cannot *api.Error
	if errors.As(err, &cannot) {
		return &server.Answer{Status: statusOf(cannot.Code), Value: api.StatusError{Error: *cannot, Status: &st}}, nil
	}
	if err != nil {
		return nil, err
	}
	return server.OK(st)
}

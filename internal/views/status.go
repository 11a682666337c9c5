package views

import (
	"context"
	"errors"
	"os"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/cni"
	"github.com/berth-net/berth/internal/ipam"
	"github.com/berth-net/berth/internal/show"
)

// Status shows how the agent is, and whether it could serve an ADD to a pool now (CNI 1.1,
// section 4, STATUS): an error of code 50 says that the agent could not. "" is the default pool;
// for an unknown pool the error is a configuration error.
func (v *Views) Status(_ context.Context, pool string) (api.Status, error) {
	st := api.Status{
		Version:     v.Version,
		Instance:    v.Instance,
		Root:        string(v.Root),
		PID:         os.Getpid(),
		Started:     v.Started,
		Attachments: map[string]int{},
		Owed:        len(v.Engine.Owed("")),
		Deletions:   v.deletionCount(),
		Pools:       v.Pools(),
		Lacks:       v.ground.Lacks(),
		Overlaps:    v.ground.Overlaps(),
		Refused:     v.ground.Refused(),
		Displaced:   message(v.Displaced()),
		Cluster:     v.cluster.Status(),
	}
	lost, err := v.history.Trouble()
	st.History = api.HistoryCount{Lost: lost, Error: message(err)}
	for _, e := range v.index.All() {
		st.Attachments[v.state(e, v.Engine.Owed(e.Owner.ID))]++
	}
	pool, err = v.ground.Serves(pool)
	if err != nil {
		return st, err
	}
	if err := errors.Join(v.drain.Answers(), v.drain.Spared(), v.ground.Lacking(pool)); err != nil {
		return st, cni.Errorf(cni.CodeNotAvailable, "the node is not ready for pods", "pool %s: %v", pool, err)
	}
	// A runtime that hears 50 calls its whole node NotReady, and Kubernetes then evicts pods that
	// lack nothing. So a full pool alone is no reason, unless somebody wants it to be one.
	if full := v.exhausted(pool); full != nil && v.ground.Config().FullNotReady {
		return st, cni.Errorf(cni.CodeNotAvailable, "pool exhausted", "%v", full)
	}
	if err := v.Core.Ledger.Writable(); err != nil {
		return st, cni.Errorf(cni.CodeNotAvailable, "the ledger cannot take another attachment", "%v", err)
	}
	return st, nil
}

// exhausted returns why an ADD would get no address of a pool now; nil if it would get one, or
// if no ADD can name the pool.
func (v *Views) exhausted(pool string) error {
	err := v.traffic.ToWall(v.ground.Pools.Available(pool, v.Clock.Now()))
	if full := (*ipam.ExhaustedError)(nil); errors.As(err, &full) {
		return full
	}
	return nil
}

// Pools returns the figures of the pools, the default pool first.
func (v *Views) Pools() []api.Pool {
	pools := show.Pools(v.ground.Pools.Stats(v.Clock.Now()))
	for i, p := range pools {
		if err := v.exhausted(p.Name); err != nil {
			pools[i].Exhausted = err.Error()
		}
	}
	return pools
}

// Ledger returns all records of the ledger, for people.
func (v *Views) Ledger() api.Ledger { return show.Ledger(v.Core.Ledger.Snapshot()) }

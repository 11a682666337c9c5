package agent

import (
	"context"
	"os"
	"strings"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/cni"
	"github.com/berth-net/berth/internal/show"
)

// Status says how the agent is, and whether an ADD to a pool could be served
// now (CNI 1.1, section 4, STATUS): an error of code 50 says it could not. An
// empty pool is the default one.
func (a *Agent) Status(_ context.Context, pool string) (api.Status, error) {
	st := api.Status{
		Version:     a.Version,
		Instance:    a.instance,
		Root:        string(a.Root),
		PID:         os.Getpid(),
		Started:     a.started,
		Attachments: map[string]int{},
		Owed:        len(a.engine.Owed("")),
		Deletions:   a.deletionCount(),
		Pools:       a.Pools(),
		Lacks:       lacking(a.egress.Lacks()),
	}
	for _, e := range a.index.all() {
		st.Attachments[a.state(e, a.engine.Owed(e.owner.ID))]++
	}
	pool, err := a.pool(pool)
	if err != nil {
		return st, err
	}
	if err := a.equipped(pool); err != nil {
		return st, cni.Errorf(cni.CodeNotAvailable, "the node is not ready for pods", "pool %s: %v", pool, err)
	}
	if err := a.toWall(a.ipam.Available(pool, a.clock.Now())); err != nil {
		return st, cni.Errorf(cni.CodeNotAvailable, "pool exhausted", "%v", err)
	}
	if err := a.ledger.Writable(); err != nil {
		return st, cni.Errorf(cni.CodeNotAvailable, "the ledger cannot take another attachment", "%v", err)
	}
	return st, nil
}

// Pools returns the pools' figures, the default pool first.
func (a *Agent) Pools() []api.Pool { return show.Pools(a.ipam.Stats(a.clock.Now())) }

// pool returns the name of the pool that a configuration names, "" being the
// default one.
func (a *Agent) pool(name string) (string, error) {
	pools := a.config.Load().Pools
	names := make([]string, len(pools))
	for i, p := range pools {
		if names[i] = p.Name; p.Name == name || name == "" {
			return p.Name, nil
		}
	}
	return "", cni.Errorf(cni.CodeConfig, "unknown pool", "pool %q is not one of the agent's: %s", name, strings.Join(names, ", "))
}

// Ledger returns all records, for people.
func (a *Agent) Ledger() api.Ledger { return show.Ledger(a.ledger.Snapshot()) }

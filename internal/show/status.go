package show

import (
	"context"
	"errors"
	"os"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/cni"
)

// Status shows how the agent is, and whether it could serve an ADD to a pool now (CNI 1.1,
// section 4, STATUS): an error of code 50 says that it could not. "" is the default pool;
// for an unknown one the error is a configuration error.
func (s *Show) Status(_ context.Context, pool string) (api.Status, error) {
	st := api.Status{
		Version:     s.Version,
		Instance:    s.Instance,
		Root:        string(s.Root),
		PID:         os.Getpid(),
		Started:     s.Started,
		Attachments: map[string]int{},
		Owed:        len(s.Engine.Owed("")),
		Deletions:   s.deletionCount(),
		Pools:       s.Pools(),
		Lacks:       s.ground.Lacks(),
	}
	for _, e := range s.index.All() {
		st.Attachments[s.state(e, s.Engine.Owed(e.Owner.ID))]++
	}
	pool, err := s.ground.Pool(pool)
	if err != nil {
		return st, err
	}
	if err := errors.Join(s.drain.Answers(), s.drain.Spared(), s.ground.Equipped(pool)); err != nil {
		return st, cni.Errorf(cni.CodeNotAvailable, "the node is not ready for pods", "pool %s: %v", pool, err)
	}
	if err := s.traffic.ToWall(s.ground.Pools.Available(pool, s.Clock.Now())); err != nil {
		return st, cni.Errorf(cni.CodeNotAvailable, "pool exhausted", "%v", err)
	}
	if err := s.Core.Ledger.Writable(); err != nil {
		return st, cni.Errorf(cni.CodeNotAvailable, "the ledger cannot take another attachment", "%v", err)
	}
	return st, nil
}

// Pools returns the figures of the pools, the default pool first.
func (s *Show) Pools() []api.Pool { return Pools(s.ground.Pools.Stats(s.Clock.Now())) }

// Ledger returns all records of the ledger, for people.
func (s *Show) Ledger() api.Ledger { return Ledger(s.Core.Ledger.Snapshot()) }

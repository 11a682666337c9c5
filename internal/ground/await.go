package ground

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/cni"
	"github.com/berth-net/berth/internal/ipam"
	"github.com/berth-net/berth/internal/turn"
)

// Cluster is what chooses the pools of pods if the cluster has pools of its own, and gives the node blocks of them.
type Cluster interface {
	// Choose returns the pool of a pod whose network's configuration names a pool, or none (""). pod is nil if the
	// runtime did not say which pod it is. The error says why the pod gets no address; it has a CNI number.
	Choose(ctx context.Context, pod *api.Pod, named string) (pool string, err error)
	// Waits is told that an ADD for `who` finds no address in a pool, and Served that it has one.
	Waits(pool, who string)
	Served(pool, who string)
}

// Choose returns the name of the pool that a pod gets addresses of, also with an error if it was chosen. named is what the network's
// configuration says; "": nothing. If the node has no block of a pool of the cluster yet, Choose waits for one, as Await does.
func (g *Ground) Choose(ctx context.Context, pod *api.Pod, named, who string) (string, error) {
	if g.Hooks.Cluster == nil {
		return g.Pool(named)
	}
	pool, err := g.Hooks.Cluster.Choose(ctx, pod, named)
	if err != nil || g.CIDRs(pool) != nil {
		return pool, err
	}
	if !g.Await(ctx, pool, who, g.Deadline(), false) {
		return pool, cni.Errorf(cni.CodeTryAgain, "no address yet", "the node has no block of pool %s yet", pool)
	}
	return pool, nil
}

// Serves returns the pool that pods get addresses of whose network's configuration names `named`, and which ask for nothing else. It
// fails if there is no such pool, or if the node has no block of the default pool yet. A block of another pool comes
// when a pod asks for it.
func (g *Ground) Serves(named string) (string, error) {
	if g.Hooks.Cluster == nil {
		return g.Pool(named)
	}
	pool, err := g.Hooks.Cluster.Choose(context.Background(), nil, named) // which asks nobody
	if err == nil && named == "" && g.CIDRs(pool) == nil {
		err = cni.Errorf(cni.CodeTryAgain, "no address yet", "the node has no block of pool %s yet", pool)
	}
	return pool, err
}

// moreLimit is how long an ADD waits for a block. An operator that lives gives one in much less. The kubelet asks again for a
// pod whose ADD has failed after ten seconds or more, in a new sandbox: so a wait is worth while. A longer one is not, because
// the runtime does nothing else for the pod meanwhile, and a pool that is used up has no block for anybody.
const moreLimit = 2 * time.Second

// Await waits until a pool of the cluster has addresses, after an ADD for `who` has found none, and has the node ask for more. It
// waits aside (turn.Aside), until deadline at most, and reports whether the pool has addresses now. A pool that is
// not the cluster's gets no more: Await does not wait. again says that the pool has had addresses once, and the ADD has got none
// of them, such as while nobody can say what the kernel remembers of them: then Await waits for another change of the pools first.
func (g *Ground) Await(ctx context.Context, pool, who string, deadline time.Time, again bool) bool {
	if g.Hooks.Cluster == nil || g.OwnPool(pool) {
		return false
	}
	changed := *g.changed.Load()
	g.Hooks.Cluster.Waits(pool, who)
	ctx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	waiting, over, keeps := turn.Aside(ctx)
	defer over()
	for !keeps && ctx.Err() == nil {
		if !again && g.Pools.Available(pool, g.Clock.Now()) == nil {
			return true
		}
		select {
		case <-changed:
			changed, again = *g.changed.Load(), false
		case <-waiting.Done():
			return false
		}
	}
	return false
}

// Deadline returns until when an ADD that begins to wait now waits for a block (Await).
func (g *Ground) Deadline() time.Time { return time.Now().Add(moreLimit) }

// Served is told that an ADD for `who` has addresses of a pool.
func (g *Ground) Served(pool, who string) {
	if g.Hooks.Cluster != nil {
		g.Hooks.Cluster.Served(pool, who)
	}
}

// Unserved is told that a pod gets no address of a pool, and why.
func (g *Ground) Unserved(pod *api.Pod, pool string, err error) { g.Hooks.Unserved(pod, pool, err) }

// OwnPool reports whether a pool is the node's own: one of the agent's configuration.
func (g *Ground) OwnPool(name string) bool {
	return slices.ContainsFunc(g.file.Load().Pools, func(p ipam.PoolConfig) bool { return p.Name == name })
}

// OwnDefault returns the first pool of the agent's configuration.
func (g *Ground) OwnDefault() (string, error) {
	pools := g.file.Load().Pools
	if len(pools) == 0 {
		return "", errors.New("the agent's configuration has no pool")
	}
	return pools[0].Name, nil
}

// changes tells those who wait that other pools are in force.
func (g *Ground) changes() {
	next := make(chan struct{})
	if was := g.changed.Swap(&next); was != nil {
		close(*was)
	}
}

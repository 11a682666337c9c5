package ground

import (
	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/hold"
)

// Exhausted is told that an ADD has found no free address in a pool. The runtime repeats such
// an ADD every few seconds, so only the first one since an ADD found an address becomes an
// event and a line in the log.
func (g *Ground) Exhausted(pool string, err error) {
	if _, said := g.exhausted.LoadOrStore(pool, nil); said {
		return
	}
	g.Log.Warn("a pool is exhausted: its pods wait for an address", "pool", pool, "err", err)
	var first hold.Owner
	for _, h := range g.heldCIDRs() {
		if h.pool == pool {
			first, _ = g.Ledger.Owner(h.owner)
			break
		}
	}
	g.Hooks.Tell(api.EventExhausted, first, "", err)
}

// Replenished is told that an ADD has found an address in a pool.
func (g *Ground) Replenished(pool string) {
	if _, said := g.exhausted.LoadAndDelete(pool); said {
		g.Log.Info("a pool has free addresses again", "pool", pool)
	}
}

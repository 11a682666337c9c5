package ground

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/berth-net/berth/internal/config"
)

// KeepConfigured puts new configurations into force, one after the other, until ctx
// ends. What they take of the kernel may hang, and keeps nothing else. Each brings its
// time between two sweeps to intervals.
func (g *Ground) KeepConfigured(ctx context.Context, reload <-chan *config.Config, intervals chan<- time.Duration) {
	for {
		select {
		case <-ctx.Done():
			return
		case c := <-reload:
			if g.Settle(ctx, c) {
				select {
				case intervals <- c.SweepInterval:
				case <-ctx.Done():
				}
			}
		}
	}
}

// Settle puts a changed configuration into force and says how that went. It
// returns whether c is in force.
func (g *Ground) Settle(ctx context.Context, c *config.Config) bool {
	err := g.Reload(ctx, c)
	switch inForce := g.config.Load() == c; {
	case !inForce:
		g.Log.Error("the new configuration is refused, and nothing has changed", "err", err)
		return false
	case err != nil:
		g.Log.Error("the new configuration is in force, but for what failed; the sweep tries it again", "err", err)
	default:
		g.Log.Info("the new configuration is in force")
	}
	if keys := g.waiting(c); len(keys) > 0 {
		g.Log.Warn("changed in the configuration, and read at the next start alone", "keys", keys)
	}
	return true
}

// waiting returns the keys that the agent was started with other values of, and
// does not read again. What forwarding turned on stays on (see forwarding).
func (g *Ground) waiting(c *config.Config) []string {
	var keys []string
	for key, changed := range map[string]bool{
		"concurrency": c.Concurrency != g.began.Concurrency,
		"metrics":     c.Metrics != g.began.Metrics,
		"logLevel":    c.LogLevel != g.began.LogLevel,
	} {
		if changed {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return keys
}

// Reload puts a changed configuration into force. New CIDRs are used at once;
// those that are gone drain: nothing new comes from them, and they are given
// back when the last address has rested. One that is refused changes nothing;
// what else fails is tried again by the sweep.
func (g *Ground) Reload(ctx context.Context, c *config.Config) error {
	done, err := g.turn.Take(ctx) // a sweep must not give back what comes into use
	if err != nil {
		return err
	}
	defer done()
	for _, h := range g.heldCIDRs() {
		for _, p := range prefixes(c.Pools) {
			if p != h.cidr && p.Overlaps(h.cidr) {
				return fmt.Errorf("pool CIDR %s overlaps %s of pool %s, which is still in use", p, h.cidr, h.pool)
			}
		}
	}
	if err := g.Pools.Set(c.Pools, g.Clock.Now()); err != nil {
		return err
	}
	g.config.Store(c)
	return errors.Join(g.keepTable(ctx), g.Hold(ctx), g.giveBack(ctx))
}

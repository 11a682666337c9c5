package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/berth-net/berth/internal/config"
)

// settle puts a changed configuration into force and says how that went. It
// returns whether c is in force.
func (a *Agent) settle(ctx context.Context, c *config.Config) bool {
	err := a.Reload(ctx, c)
	switch inForce := a.config.Load() == c; {
	case !inForce:
		a.Log.Error("the new configuration is refused, and nothing has changed", "err", err)
		return false
	case err != nil:
		a.Log.Error("the new configuration is in force, but for what failed; the sweep tries it again", "err", err)
	default:
		a.Log.Info("the new configuration is in force")
	}
	if keys := a.waiting(c); len(keys) > 0 {
		a.Log.Warn("changed in the configuration, and read at the next start alone", "keys", keys)
	}
	return true
}

// waiting returns the keys that the agent was started with other values of, and
// does not read again. What forwarding turned on stays on (see forwarding).
func (a *Agent) waiting(c *config.Config) []string {
	var keys []string
	for key, changed := range map[string]bool{
		"concurrency": c.Concurrency != a.Config.Concurrency,
		"metrics":     c.Metrics != a.Config.Metrics,
		"logLevel":    c.LogLevel != a.Config.LogLevel,
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
func (a *Agent) Reload(ctx context.Context, c *config.Config) error {
	select {
	case a.pools <- struct{}{}: // a sweep must not give back what comes into use
		defer func() { <-a.pools }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	for _, h := range a.heldCIDRs() {
		for _, p := range prefixes(c.Pools) {
			if p != h.cidr && p.Overlaps(h.cidr) {
				return fmt.Errorf("pool CIDR %s overlaps %s of pool %s, which is still in use", p, h.cidr, h.pool)
			}
		}
	}
	if err := a.ipam.Set(c.Pools, a.clock.Now()); err != nil {
		return err
	}
	a.config.Store(c)
	return errors.Join(a.keepTable(ctx), a.holdNode(ctx), a.giveBack(ctx))
}

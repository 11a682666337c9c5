package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/berth-net/berth/internal/config"
)

// Reload puts a changed configuration into force. New CIDRs are used at once;
// those that are gone drain: nothing new comes from them, and they are given
// back when the last address has rested. One that is refused changes nothing;
// what else fails is tried again by the sweep.
func (a *Agent) Reload(ctx context.Context, c *config.Config) error {
	for _, h := range a.heldCIDRs() {
		for _, p := range prefixes(c.Pools) {
			if p != h.cidr && p.Overlaps(h.cidr) {
				return fmt.Errorf("pool CIDR %s overlaps %s of pool %s, which is still in use", p, h.cidr, h.pool)
			}
		}
	}
	if err := a.ipam.Set(c.Pools, time.Now()); err != nil {
		return err
	}
	a.config.Store(c)
	return errors.Join(a.egress.SetRuleset(a.ruleset()), a.holdNode(ctx), a.giveBack(ctx))
}

package ground

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/berth-net/berth/internal/config"
)

// KeepConfigured puts the configurations that come from reload into force, one after the
// other, until ctx ends, and so does it with what ip-masq-agent's file has come to say (resync). Steps that
// a configuration needs in the kernel may hang. They delay only KeepConfigured. It sends the sweep interval of each configuration in force to intervals.
func (g *Ground) KeepConfigured(ctx context.Context, reload <-chan config.Reading, intervals chan<- time.Duration) {
	g.sayMasqAgent(g.file.Load().Masquerade.MasqAgentErr)
	for {
		var resync <-chan time.Time
		if a := g.file.Load().Masquerade.MasqAgent; a != nil {
			resync = time.After(a.ResyncInterval)
		}
		select {
		case <-ctx.Done():
			return
		case <-resync:
			g.resync(ctx)
		case read := <-reload:
			if read.Err != nil {
				g.refuse(read.Err)
				continue
			}
			read.Config.KeepMasqAgent(g.file.Load())
			if g.Settle(ctx, read.Config) {
				g.sayMasqAgent(read.Config.Masquerade.MasqAgentErr)
				select {
				case intervals <- read.Config.SweepInterval:
				case <-ctx.Done():
				}
			}
		}
	}
}

// resync reads ip-masq-agent's file again, and puts into force what it has come to say. Everything else stays as it is in
// force, whatever berthd.yaml says by now, and no pool can be in the way.
func (g *Ground) resync(ctx context.Context) {
	was := g.file.Load()
	c, err := was.ResyncMasqAgent()
	g.sayMasqAgent(err)
	if c == was {
		return
	}
	switch err := g.follow(ctx, c); {
	case err != nil:
		g.Log.Error("what ip-masq-agent's file says is in force, except for what failed; the sweep tries that again", "err", err)
	case c.Masquerade.MasqAgent.Absent:
		g.Log.Info("ip-masq-agent's file is not there, and its defaults are in force", "file", c.Masquerade.IPMasqAgentFile)
	default:
		g.Log.Info("what ip-masq-agent's file says is in force", "file", c.Masquerade.IPMasqAgentFile)
	}
}

// follow puts a configuration into force that differs from the one in force in what ip-masq-agent's file says.
func (g *Ground) follow(ctx context.Context, c *config.Config) error {
	done, err := g.turn.Take(ctx)
	if err != nil {
		return err
	}
	defer done()
	if err := g.set(c.With(g.Given())); err != nil {
		return err
	}
	g.file.Store(c)
	return g.keepTable(ctx)
}

// sayMasqAgent says why ip-masq-agent's file is not followed; nil: it is.
func (g *Ground) sayMasqAgent(err error) {
	was := g.masqRefused.Load()
	switch {
	case err == nil:
		g.masqRefused.Store(nil)
		if was != nil && g.refused.Load() == nil {
			g.Meter.Reloaded(nil)
		}
	case was == nil || *was != err.Error():
		why := err.Error()
		g.masqRefused.Store(&why)
		g.Meter.Reloaded(err)
		g.Log.Error("berthd does not follow ip-masq-agent's file, and keeps the rules in force", "err", err)
	}
}

// Settle puts a changed configuration into force, and logs how that went. It returns
// whether c is in force.
func (g *Ground) Settle(ctx context.Context, c *config.Config) bool {
	err := g.Reload(ctx, c)
	inForce := g.file.Load() == c
	if !inForce {
		g.refuse(err)
		return false
	}
	g.refused.Store(nil)
	if g.masqRefused.Load() == nil {
		g.Meter.Reloaded(nil)
	}
	switch {
	case err != nil:
		g.Log.Error("the new configuration is in force, except for what failed; the sweep tries that again", "err", err)
	default:
		g.Log.Info("the new configuration is in force")
	}
	if keys := g.waiting(c); len(keys) > 0 {
		g.Log.Warn("the new configuration changes keys that berthd reads only when it starts", "keys", keys)
	}
	return true
}

// refuse says why a new configuration is not put into force.
func (g *Ground) refuse(err error) {
	why := err.Error()
	g.refused.Store(&why)
	g.Meter.Reloaded(err)
	g.Log.Error("berthd refuses the new configuration, and keeps the one in force", "err", err)
}

// Refused says why the configuration that was read last, or ip-masq-agent's file, is not in force, and what was before
// is; "" if what was read last is in force.
func (g *Ground) Refused() string {
	var all []string
	for _, why := range []*string{g.refused.Load(), g.masqRefused.Load()} {
		if why != nil {
			all = append(all, *why)
		}
	}
	return strings.Join(all, "; ")
}

// waiting returns the keys that the agent reads only at its start, and that have other values in c than
// at that start. The key forwarding is not among them: forwarding that is on stays on.
func (g *Ground) waiting(c *config.Config) []string {
	var keys []string
	for key, changed := range map[string]bool{
		"concurrency": c.Concurrency != g.began.Concurrency,
		"metrics":     c.Metrics != g.began.Metrics,
		"tracing":     c.Tracing != g.began.Tracing,
		"logLevel":    c.LogLevel != g.began.LogLevel,
		"kubernetes":  !c.Kubernetes.Is(g.began.Kubernetes),
	} {
		if changed {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return keys
}

// Reload puts a changed configuration into force. New CIDRs are used at once. CIDRs that the
// configuration has no more drain: no new address comes from them, and the agent gives them back
// when their last address has rested. If Reload refuses the configuration, nothing has
// changed. If something else fails, the configuration is in force, and the sweep tries
// again what failed.
func (g *Ground) Reload(ctx context.Context, c *config.Config) error {
	done, err := g.turn.Take(ctx) // so that no sweep gives back a CIDR that comes into use now
	if err != nil {
		return err
	}
	defer done()
	return g.reload(ctx, c, g.Given())
}

// reload is Reload with what the cluster has given to the node. The caller has g.turn.
func (g *Ground) reload(ctx context.Context, file *config.Config, given config.Given) error {
	c := file.With(given)
	for _, h := range g.heldCIDRs() {
		for _, p := range prefixes(c.Pools) {
			if p != h.cidr && p.Overlaps(h.cidr) {
				return fmt.Errorf("pool CIDR %s overlaps %s of pool %s, which is still in use", p, h.cidr, h.pool)
			}
		}
	}
	for _, pool := range c.Pools {
		for _, cidr := range pool.CIDRs {
			if err := g.turned(pool, cidr); err != nil {
				return err
			}
		}
	}
	if err := g.RefuseOverlaps(c); err != nil {
		return err
	}
	if err := g.set(c); err != nil {
		return err
	}
	g.file.Store(file)
	g.given.Store(&given)
	g.SayOverlaps(ctx)
	left := g.Hooks.Left() // before an ADD can get an address of a new pool, which has to wait for Hold
	return errors.Join(left, g.keepTable(ctx), g.Hold(ctx), g.giveBack(ctx))
}

// set puts a configuration and its pools into force. Pool sees both change at once: otherwise an ADD
// could choose a default pool that is gone, or that is not there yet. Pools with new CIDRs are not equipped
// before the caller has taken what their pods need (Hold).
func (g *Ground) set(c *config.Config) error {
	g.setting.Lock()
	defer g.setting.Unlock()
	lack := g.lack.Load()
	g.takes(c)
	if err := g.Pools.Set(c.Pools, g.Clock.Now()); err != nil {
		g.lack.Store(lack)
		return err
	}
	g.config.Store(c)
	g.changes()
	return nil
}

// takes notes that the node lacks, until Hold has ended, what the pods of pools with new CIDRs need.
func (g *Ground) takes(c *config.Config) {
	lack := g.lack.Load()
	if lack == nil {
		return // Hold has not run, and the agent serves nobody
	}
	var had []netip.Prefix
	for _, p := range g.config.Load().Pools {
		if (*lack)[p.Name] == nil {
			had = append(had, p.CIDRs...)
		}
	}
	next := maps.Clone(*lack)
	for _, p := range c.Pools {
		if slices.ContainsFunc(p.CIDRs, func(c netip.Prefix) bool { return !slices.Contains(had, c) }) {
			next[p.Name] = errTaking
		}
	}
	g.lack.Store(&next)
}

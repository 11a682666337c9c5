package traffic

import (
	"context"

	"github.com/berth-net/berth/internal/kernel/conntrack"
)

// Exposed says that the nftables table may have been missing or out of force, or a pod's
// link not among the links that its rules are for, and that all is well again. Its callers
// are those that see this: the keeper of the table (ground), the repair of a link
// (link.Options), the watcher of links (mend), and the agent's start.
func (t *Traffic) Exposed() {
	select {
	case t.uncovered <- struct{}{}:
	default:
	}
}

// KeepHidden makes the kernel forget, whenever the rules may not have held, the connections
// that began meanwhile and that the rules would not have let begin in this way, such as those
// that leave with a pod's own address, or go to a blocked one (conntrack.ForgetExposed). It
// ends with ctx.
func (t *Traffic) KeepHidden(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.uncovered:
		}
		r := t.ground.Ruleset()
		rules := conntrack.Rules{Pools: r.Pools, Masquerade: r.Masquerade, Excluded: r.Excluded, Blocked: r.Blocked}
		if err := t.node.Tracked.ForgetExposed(rules); err != nil {
			t.Log.Warn("could not delete the connections that began while the nftables rules did not hold", "err", err)
		}
	}
}

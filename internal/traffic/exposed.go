package traffic

import (
	"context"

	"github.com/berth-net/berth/internal/kernel/conntrack"
)

// Exposed is told that the nftables table may have been missing or out of force, or a
// pod's link not among those that its rules are for, and that all is well again. Who
// sees that says so: whoever keeps the table (ground), mends the link (link.Options)
// or hears of both ends of it (watcher), and a start.
func (t *Traffic) Exposed() {
	select {
	case t.uncovered <- struct{}{}:
	default:
	}
}

// KeepHidden forgets, whenever the rules may not have held, the connections that began
// meanwhile and that the rules would not have let begin so: with pods' own addresses, or
// to where nothing goes. It ends with ctx.
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
			t.Log.Warn("connections that began while the table's rules did not hold may go on as they are", "err", err)
		}
	}
}

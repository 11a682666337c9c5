package ground

import (
	"context"
	"errors"
	"time"
)

// everyPool is the key of what the pods of all pools need. No pool has this name.
const everyPool = ""

// errTaking says that the agent is taking what the pods of new CIDRs need.
var errTaking = errors.New("the agent has not yet taken what pods of its new addresses need")

// takingLimit is how long Equipped waits for errTaking to go.
const takingLimit = 2 * time.Second

// Equipped refuses a pool if the node lacks something that its pods need, such as the table
// by which they are cut off, or their CIDR's unreachable route. "" stands for pods without a pool. While a reload takes that for new CIDRs,
// Equipped waits, for two seconds at most, and lets other requests have the place of ctx meanwhile (turn.Place).
func (g *Ground) Equipped(ctx context.Context, pool string) error {
	err := g.Lacking(pool)
	if !errors.Is(err, errTaking) {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, takingLimit)
	defer cancel()
	done, late := g.turn.Take(ctx) // the reload has it
	if late != nil {
		return err
	}
	done()
	return g.Lacking(pool)
}

// Lacking says what the node lacks that pods of a pool need, as far as the agent knows now.
func (g *Ground) Lacking(pool string) error {
	lack := g.lack.Load()
	if lack == nil {
		return nil // Hold has not run: the agent was not restored, and serves nobody
	}
	if pool == everyPool {
		return (*lack)[everyPool]
	}
	return errors.Join((*lack)[everyPool], (*lack)[pool])
}

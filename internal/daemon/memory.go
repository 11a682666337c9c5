package daemon

import (
	"context"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

// When the daemon gives memory back to the system: a burst of requests leaves the heap large,
// and the runtime keeps most of it. While nothing happens, the runtime collects garbage every
// two minutes, and gives back nothing up to a tenth above the heap that it expects. Meanwhile
// records of the burst expire, and what the daemon does by itself leaves garbage.
const (
	lullTime  = 10 * time.Second // how often the daemon looks, and how long a burst must have been over
	lullLag   = 2 * time.Second  // sweeps and the ledger's pruning, every lullTime or a multiple, leave garbage: the daemon looks lullLag later
	lullMost  = 20               // in a lull, the ledger has at most this many transactions in lullTime
	leastBack = 1 << 20          // bytes that are worth collecting garbage
	backShare = 4                // and at least this part (1/4) of the memory in use: the collector looks at all memory in use
)

// lull notices when there are hardly any transactions.
type lull struct {
	last uint64 // the transactions at the last call of calm
}

// calm reports whether there is a lull. keepSmall calls calm every lullTime, with the number of
// transactions that the ledger has had.
func (l *lull) calm(transactions uint64) bool {
	calm := transactions-l.last <= lullMost
	l.last = transactions
	return calm
}

// usage is the memory of Go's heap, in bytes.
type usage struct {
	live uint64 // in use when garbage was last collected
	back uint64 // what can be given back
}

// worth reports whether u.back is large enough that the daemon should collect garbage and give the
// memory back.
func (u usage) worth() bool { return u.back >= max(leastBack, u.live/backShare) }

func heapUsage() usage {
	s := []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/memory/classes/heap/objects:bytes"}, {Name: "/memory/classes/heap/free:bytes"}}
	metrics.Read(s)
	live, objects, free := s[0].Value.Uint64(), s[1].Value.Uint64(), s[2].Value.Uint64()
	return usage{live, free + objects - min(live, objects)}
}

// keepSmall gives memory back while there is a lull, until ctx ends.
func (d *Daemon) keepSmall(ctx context.Context) {
	var l lull
	Sleep(ctx, lullLag, nil)
	tick := time.NewTicker(lullTime)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if l.calm(d.Ledger.Stats().Transactions) && heapUsage().worth() {
				debug.FreeOSMemory()
			}
		}
	}
}

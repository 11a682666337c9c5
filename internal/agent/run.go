package agent

import (
	"context"
	"errors"
	"time"

	"github.com/berth-net/berth/internal/config"
	"github.com/berth-net/berth/internal/daemon"
	"github.com/berth-net/berth/internal/ground"
	"github.com/berth-net/berth/internal/node"
	"github.com/berth-net/berth/internal/routes"
)

// Run is the life of an agent, until ctx ends. Run puts each configuration that comes from
// reload into force; a nil channel brings none.
//
// The order is: the agent begins to hear the kernel's news. The ledger's lock decides which
// process is the agent of the root. The agent makes its socket, so that plugins wait
// instead of finding nobody. It does the deletions that wait in the queue, and cuts off again
// the owners that are being released (resume). It serves verbs, and beside them it takes again
// what attached pods lack. The agent ends in the reverse order, and pods stay as they are.
func Run(ctx context.Context, o Options, reload <-chan config.Reading) error {
	reports := daemon.NewReports()
	reports.Hear(&o.Options)
	o.Trace("berthd", o.Version, o.Config.Tracing.Endpoint, o.Config.Tracing.Sampling)
	a, err := open(o, node.Open, true)
	if err != nil {
		return err
	}
	if err := a.ground.RefuseOverlaps(o.Config); err != nil {
		return errors.Join(err, a.Close())
	}
	reports.Metrics.ExpectRepairs(ground.ForwardingKind)
	srv := routes.New(a, reports.Events, a.core.ServerOptions(reports, o.Config.Concurrency))
	err = a.core.Live(ctx, srv, a.life(o.Config, reload))
	reports.Events.Close()
	return errors.Join(err, a.Close())
}

// life lists what an agent does on its own.
func (a *Agent) life(c *config.Config, reload <-chan config.Reading) daemon.Life {
	intervals := make(chan time.Duration)
	return daemon.Life{
		Early: []func(context.Context){ // these begin before the restore, because its cuts rely on the table
			a.ground.KeepCut,
			a.ground.KeepTable,
		},
		Metrics: c.Metrics,
		Resume: func(ctx context.Context) (func(context.Context), error) {
			mend, err := a.resume(ctx)
			a.traffic.Unwatched()  // nobody watched since the last agent; Missed was called if the table differed
			a.traffic.MappedAnew() // the last agent may have ended before its pass for these
			return mend, err
		},
		Own: []func(context.Context){
			a.ground.KeepHeld,
			a.traffic.KeepRinsed,
			a.traffic.KeepUnbarred,
			a.traffic.KeepHidden,
			a.traffic.KeepMapped,
			a.traffic.KeepTrimmed,
			a.mend.Keep,
			a.cluster.Peers.Keep,
		},
		// Deletions that a plugin queued after the restore's drain are waiting already. A deletion
		// that a plugin queues while the agent stops may be about a pod whose ADD is under way.
		Lasting: []func(context.Context){a.drain.Keep, a.KeepHistory},
		Serving: func() []any { return []any{"attachments", len(a.index.All())} },
		Later: []func(context.Context){
			a.drain.KeepRoom,
			a.ground.SayOverlaps,
			func(ctx context.Context) { a.ground.KeepConfigured(ctx, reload, intervals) },
			a.cluster.Follow,
			a.plugger.KeepPlugged,
		},
		Sweep: a.Sweep, Interval: c.SweepInterval, Intervals: intervals,
	}
}

package agent

import (
	"context"
	"errors"
	"time"

	"github.com/berth-net/berth/internal/config"
	"github.com/berth-net/berth/internal/daemon"
	"github.com/berth-net/berth/internal/node"
	"github.com/berth-net/berth/internal/routes"
)

// Run is the life of an agent, until ctx ends. Each value of reload is a new
// configuration to put into force; a nil channel brings none.
//
// Order: the kernel's news are heard; the ledger's lock decides who the agent of
// the root is; then the socket is there, so that plugins wait instead of finding
// nobody; then who is being released is cut off again (resume); then verbs are
// served, and what attached pods lack is taken again beside them. The end is the
// other way round, and pods stay as they are.
func Run(ctx context.Context, o Options, reload <-chan *config.Config) error {
	reports := daemon.NewReports()
	reports.Hear(&o.Options)
	a, err := open(o, node.Open, true)
	if err != nil {
		return err
	}
	srv := routes.New(a, reports.Events, a.core.ServerOptions(reports, o.Config.Concurrency))
	err = a.core.Live(ctx, srv, a.life(o.Config, reload))
	reports.Events.Close()
	return errors.Join(err, a.Close())
}

// life is what an agent does on its own.
func (a *Agent) life(c *config.Config, reload <-chan *config.Config) daemon.Life {
	intervals := make(chan time.Duration)
	return daemon.Life{
		Early: []func(context.Context){ // before the restore, whose cuts rely on the table
			a.ground.KeepCut,
			a.ground.KeepTable,
		},
		Metrics: c.Metrics,
		Resume: func(ctx context.Context) (func(context.Context), error) {
			mend, err := a.resume(ctx)
			a.traffic.Exposed() // for what we know: nobody has kept the table since the last agent
			return mend, err
		},
		Own: []func(context.Context){
			a.traffic.KeepRinsed,
			a.traffic.KeepHidden,
			a.traffic.KeepTrimmed,
			a.mend.Keep,
		},
		// What has come since the restore's drain waits already. And what comes while the
		// agent stops may be about a pod whose ADD is under way.
		Lasting: []func(context.Context){a.drain.Keep},
		Serving: func() []any { return []any{"attachments", len(a.index.All())} },
		Later: []func(context.Context){
			func(context.Context) { a.drain.KeepSpares() },
			func(ctx context.Context) { a.ground.KeepConfigured(ctx, reload, intervals) },
		},
		Sweep: a.Sweep, Interval: c.SweepInterval, Intervals: intervals,
	}
}

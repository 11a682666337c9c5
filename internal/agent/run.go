package agent

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/config"
	"github.com/berth-net/berth/internal/events"
	"github.com/berth-net/berth/internal/kinds/egress"
	"github.com/berth-net/berth/internal/server"
)

// stopping is how long verbs under way may go on when the agent is told to
// stop.
const stopping = 10 * time.Second

// presence is how long nobody may reach an agent whose socket was removed.
const presence = time.Second

// Run is the life of an agent, until ctx ends. Each value of reload is a new
// configuration to put into force; a nil channel brings none.
//
// Order: the kernel's news are heard; the ledger's lock decides who the agent of
// the root is; then the socket is there, so that plugins wait instead of finding
// nobody; then who is being released is cut off again (resume); then verbs are
// served, and what attached pods lack is taken again beside them. The end is the
// other way round, and pods stay as they are.
func Run(ctx context.Context, o Options, reload <-chan *config.Config) error {
	hub, metrics := events.NewHub(events.Remember), server.NewMetrics()
	o.Event, o.Observe = hub.Publish, metrics.ObserveKind
	a, err := open(o, (*Agent).openKernel, true)
	if err != nil {
		return err
	}
	metrics.ObserveLedger(a.ledger.Stats)
	srv := server.New(server.Options{
		Verbs: a, Events: hub, Metrics: metrics, Concurrency: o.Config.Concurrency, Log: o.Log,
	})
	if err := srv.Listen(o.Root); err != nil {
		return errors.Join(err, a.Close())
	}
	ctx, cancel := context.WithCancelCause(ctx)
	served := make(chan struct{})
	go func() {
		defer close(served)
		cancel(srv.Serve())
	}()

	err = a.serve(ctx, srv, reload)

	_, _ = daemon.SdNotify(false, daemon.SdNotifyStopping)
	patience, done := context.WithTimeout(context.Background(), stopping)
	defer done()
	err = errors.Join(err, srv.Shutdown(patience))
	<-served
	hub.Close()
	return errors.Join(err, a.Close())
}

// serve restores, opens the API, and does what the agent does on its own, until
// ctx ends or the agent cannot go on.
func (a *Agent) serve(ctx context.Context, srv *server.Server, reload <-chan *config.Config) error {
	ctx, cancel := context.WithCancel(ctx) // of what this starts, should it end early
	var own sync.WaitGroup
	defer func() {
		cancel()
		ended := make(chan struct{})
		go func() {
			own.Wait()
			close(ended)
		}()
		select {
		case <-ended:
		case <-time.After(stopping): // for a kind that hangs, and does not hear of the end
			a.Log.Warn("ending, though something of the agent's own has not")
		}
	}()
	own.Go(func() { a.keepCut(ctx) })
	own.Go(func() { a.egress.Run(ctx, a.egressDrift) }) // before the restore, whose cuts rely on the table
	if addr := a.Config.Metrics; addr != "" {
		if _, err := srv.ServeMetrics(addr); err != nil {
			return err
		}
	}
	mend, err := a.resume(ctx)
	if err != nil {
		return err
	}
	if ctx.Err() != nil { // told to stop meanwhile: deletions may wait, which come before anybody is served
		return whyEnded(ctx)
	}
	own.Go(func() { a.keepRinsed(ctx) })
	a.exposed() // for what we know: nobody has kept the table since the last agent
	own.Go(func() { a.keepHidden(ctx) })
	own.Go(func() { a.keepTrimmed(ctx) })
	own.Go(func() { a.watch(ctx) })
	own.Go(func() { a.keepDrained(ctx) }) // what has come since the restore's drain waits already
	srv.Open()
	if _, err := daemon.SdNotify(false, daemon.SdNotifyReady); err != nil {
		a.Log.Warn("telling systemd", "err", err)
	}
	a.Log.Info("serving", "root", a.Root, "instance", a.instance, "attachments", len(a.index.all()),
		"after", time.Since(a.started).Round(time.Millisecond))
	own.Go(a.keepSpares)
	own.Go(func() { mend(ctx) })
	intervals := make(chan time.Duration)
	own.Go(func() { a.keepSwept(ctx, intervals) })
	usurped := make(chan error, 1)
	own.Go(func() { a.keepReachable(ctx, srv, usurped) })
	own.Go(func() { a.keepConfigured(ctx, reload, intervals) })
	select {
	case <-ctx.Done():
		return whyEnded(ctx)
	case <-a.ledger.Failed():
		return fmt.Errorf("going on needs a new start: %w", a.ledger.Writable())
	case err := <-usurped:
		return fmt.Errorf("ending, since the lock of the instance was removed and is another's now: %w", err)
	}
}

// keepConfigured puts new configurations into force, one after the other, until ctx
// ends. What they take of the kernel may hang, and keeps nothing else.
func (a *Agent) keepConfigured(ctx context.Context, reload <-chan *config.Config, intervals chan<- time.Duration) {
	for {
		select {
		case <-ctx.Done():
			return
		case c := <-reload:
			if a.settle(ctx, c) {
				select {
				case intervals <- c.SweepInterval:
				case <-ctx.Done():
				}
			}
		}
	}
}

// keepSwept sweeps again and again, until ctx ends. intervals brings another time
// between two sweeps, also while one is under way.
func (a *Agent) keepSwept(ctx context.Context, intervals <-chan time.Duration) {
	ticker := time.NewTicker(a.Config.SweepInterval)
	defer ticker.Stop()
	var sweep sync.WaitGroup
	defer sweep.Wait()
	for {
		select {
		case <-ctx.Done():
			return
		case every := <-intervals:
			ticker.Reset(every)
		case <-ticker.C:
			if len(a.sweeping) == 0 { // or the last one goes on still
				sweep.Go(func() { a.Sweep(ctx) })
			}
		}
	}
}

// cutAnew is told that the table is not what the cuts of dying pods rely on.
func (a *Agent) cutAnew() {
	select {
	case a.doubted <- struct{}{}:
	default:
	}
}

// keepCut makes the cuts of dying pods stand without the table whenever that is not
// as it should be, until ctx ends.
func (a *Agent) keepCut(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.doubted:
		}
		if err := a.links.DownDying(ctx); err != nil {
			a.Log.Warn("cutting dying pods off without the nftables table", "err", err)
		}
	}
}

// keepReachable makes the socket again if somebody removes it, what else is in its
// folder, and the lock of the instance, until ctx ends. Whoever has that lock meanwhile
// may give the same addresses out: it says so to usurped, and this agent ends.
func (a *Agent) keepReachable(ctx context.Context, srv *server.Server, usurped chan<- error) {
	look := time.NewTicker(presence)
	defer look.Stop()
	var unheard string // why nobody can reach the agent
	var unlocked bool  // it could not lock its instance again
	for {
		select {
		case <-ctx.Done():
			return
		case <-look.C:
		}
		again, err := srv.Relisten()
		if again {
			a.Log.Warn("somebody removed the socket, and it is made again")
			if err := writeMarker(a.Root, thisEpoch(a.boot, a.self), a.instance); err != nil { // it went with the folder
				a.Log.Warn("the run folder was removed", "err", err)
			}
		}
		bad := a.lockAgain()
		if errors.Is(bad, ErrTwice) {
			usurped <- bad
			return
		}
		if bad != nil && !unlocked {
			a.Log.Error("the lock of the instance was removed", "err", bad)
		}
		unlocked = bad != nil
		if was := unheard; err == nil {
			unheard = ""
		} else if unheard = err.Error(); unheard != was {
			a.Log.Error("the socket was removed", "err", err)
		}
	}
}

// whyEnded is the error that ended a life; nil if the agent was told to stop.
func whyEnded(ctx context.Context) error {
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// egressDrift tells that somebody changed the agent's nftables table, or touched it.
func (a *Agent) egressDrift(drift, err error) {
	id, held := a.ledger.Holder(egressName)
	if o, ok := a.ledger.Owner(id); held && ok && drift != nil {
		a.tell(api.EventDrift, o, egress.KindName, drift)
	}
	if err != nil {
		a.Log.Warn("keeping the nftables table", "drift", drift, "err", err)
		return
	}
	if drift != nil {
		a.Log.Info("the nftables table was changed by others and is restored", "drift", drift)
	}
	a.exposed() // whatever the table was in between
}

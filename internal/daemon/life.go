package daemon

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	systemd "github.com/coreos/go-systemd/v22/daemon"

	"github.com/berth-net/berth/internal/daemon/server"
	"github.com/berth-net/berth/internal/patience"
)

// stopping is how long verbs under way, and then the daemon's own work, may go on when the
// daemon is told to stop.
const stopping = 10 * time.Second

// lastLook is how long the functions of Life.Lasting may take to end. With the engine's own end, all
// waits together stay below the unit's TimeoutStopSec.
const lastLook = 3 * time.Second

// Life lists what a daemon does on its own while it serves. Each function of a list has a
// goroutine, and ends when its context ends.
type Life struct {
	// Early functions begin before Resume.
	Early []func(context.Context)
	// Resume runs before verbs are served. The mend that it returns runs beside them.
	Resume func(context.Context) (mend func(context.Context), err error)
	// Own functions begin after Resume, before verbs are served.
	Own []func(context.Context)
	// Lasting functions begin together with Own, but their context ends only when no
	// verb is under way any more.
	Lasting []func(context.Context)
	// Later functions begin once verbs are served.
	Later []func(context.Context)
	// Sweep runs every Interval. Intervals brings another interval.
	Sweep     func(context.Context)
	Interval  time.Duration
	Intervals <-chan time.Duration
	// Metrics is the TCP address at which metrics are served; "": they are not served.
	Metrics string
	// Serving returns pairs of keys and values for the log line that says that the
	// daemon serves.
	Serving func() []any
}

// Live is the life of a daemon whose ledger and engine are open, until ctx ends. It leaves
// them open. Live first makes the socket, so that clients wait instead of finding nobody.
// Then it calls Life.Resume, and then it serves verbs. It ends in the reverse order.
func (d *Daemon) Live(ctx context.Context, srv *server.Server, l Life) error {
	if err := srv.Listen(d.Root); errors.Is(err, server.ErrServed) {
		return err
	} else if err != nil { // whatever it is, deletions that wait need no socket; keepReachable tries again
		d.Log.Error("nobody can reach the agent, because it could not make its socket", "err", err)
		d.deaf = err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	served := make(chan struct{})
	go func() {
		defer close(served)
		cancel(srv.Serve())
	}()

	lasting := d.group(context.WithoutCancel(ctx))
	err := d.serve(ctx, srv, l, lasting)

	d.notify(systemd.SdNotifyStopping)
	underWay, done := context.WithTimeout(context.Background(), stopping)
	defer done()
	err = errors.Join(err, srv.Shutdown(underWay))
	lasting.end(lastLook)
	<-served
	return err
}

// group is a set of a daemon's goroutines that end together.
type group struct {
	*Daemon
	ctx    context.Context
	cancel context.CancelFunc
	all    sync.WaitGroup
}

func (d *Daemon) group(ctx context.Context) *group {
	g := &group{Daemon: d}
	g.ctx, g.cancel = context.WithCancel(ctx)
	return g
}

func (g *group) begin(all ...func(context.Context)) {
	for _, do := range all {
		g.all.Go(func() { do(g.ctx) })
	}
}

// end ends the goroutines, and waits until they have ended, for limit at most.
func (g *group) end(limit time.Duration) {
	g.cancel()
	if !patience.Ends(&g.all, limit) { // a kind may hang, and not notice that its context has ended
		g.Log.Warn("the agent ends, although some of its background work has not ended")
	}
}

// serve resumes, opens the API, and runs the daemon's own work, until ctx ends or the
// daemon cannot go on. The functions that it begins in lasting go on after it has returned.
func (d *Daemon) serve(ctx context.Context, srv *server.Server, l Life, lasting *group) error {
	own := d.group(ctx)
	defer own.end(stopping)
	ctx = own.ctx // the functions of own end with this context, also if serve returns early
	own.begin(l.Early...)
	if l.Metrics != "" {
		own.begin(func(ctx context.Context) { d.keepMetrics(ctx, srv, l.Metrics) })
	}
	mend, err := l.Resume(ctx)
	if err != nil {
		return err
	}
	if ctx.Err() != nil { // told to stop meanwhile, so that Resume may have left deletions undone: nobody may be served before they are done
		return whyEnded(ctx)
	}
	own.begin(l.Own...)
	lasting.begin(l.Lasting...)
	if d.Tracer != nil {
		lasting.begin(d.Tracer.Keep)
	}
	srv.Open()
	d.notify(systemd.SdNotifyReady)
	d.Log.Info("serving", append([]any{"root", d.Root, "instance", d.Instance}, append(l.Serving(),
		"after", time.Since(d.Started).Round(time.Millisecond))...)...)
	usurped := make(chan error, 1)
	own.begin(l.Later...)
	own.begin(mend,
		d.keepSmall,
		func(ctx context.Context) { d.KeepSwept(ctx, l) },
		func(ctx context.Context) { d.keepReachable(ctx, srv, usurped) })
	select {
	case <-ctx.Done():
		return whyEnded(ctx)
	case <-d.Ledger.Failed():
		return fmt.Errorf("the agent cannot go on: %w", d.Ledger.Writable())
	case err := <-usurped:
		return fmt.Errorf("the agent ends, because somebody removed the lock of its instance and another agent has locked the instance: %w", err)
	}
}

// KeepSwept sweeps at every interval, until ctx ends. Life.Intervals may bring another
// interval at any time, also while a sweep is under way.
func (d *Daemon) KeepSwept(ctx context.Context, l Life) {
	ticker := time.NewTicker(l.Interval)
	defer ticker.Stop()
	var sweep sync.WaitGroup
	defer sweep.Wait()
	for {
		select {
		case <-ctx.Done():
			return
		case every := <-l.Intervals:
			ticker.Reset(every)
		case <-ticker.C:
			if !d.sweeping.Taken() { // otherwise the last one has not ended
				sweep.Go(func() { l.Sweep(ctx) })
			}
		}
	}
}

// The pause between two tries to serve metrics, at first and at most.
const (
	metricsAgain = time.Second
	metricsLater = time.Minute
)

// keepMetrics serves metrics at an address. It tries until it can, for example until nobody
// else has the address: pods do not need the metrics, so the daemon serves without them.
func (d *Daemon) keepMetrics(ctx context.Context, srv *server.Server, addr string) {
	for pause := metricsAgain; ; pause = min(2*pause, metricsLater) {
		_, err := srv.ServeMetrics(addr)
		if err == nil || ctx.Err() != nil {
			return
		}
		d.Log.Error("could not serve metrics", "err", err, "next try in", pause)
		Sleep(ctx, pause, nil)
	}
}

// notify tells the supervisor of a state (sd_notify(3)). It does so in a goroutine of its
// own, after the states before: a supervisor that does not read its socket delays nothing
// else.
func (d *Daemon) notify(state string) {
	before := d.notified
	told := make(chan struct{})
	d.notified = told
	go func() {
		defer close(told)
		if before != nil {
			<-before
		}
		if _, err := systemd.SdNotify(false, state); err != nil {
			d.Log.Warn("could not tell systemd about the agent's state", "err", err)
		}
	}()
}

// whyEnded returns the error that has ended a life, or nil if the daemon was told to stop.
func whyEnded(ctx context.Context) error {
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

package daemon

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	systemd "github.com/coreos/go-systemd/v22/daemon"

	"github.com/berth-net/berth/internal/daemon/server"
)

// stopping is how long verbs under way may go on when the daemon is told to
// stop.
const stopping = 10 * time.Second

// Life is what a daemon does on its own while it serves. Each function of a list has a
// goroutine, and ends with its context.
type Life struct {
	// Early begins before Resume.
	Early []func(context.Context)
	// Resume is done before verbs are served. mend is done beside them.
	Resume func(context.Context) (mend func(context.Context), err error)
	// Own begins after Resume, before verbs are served.
	Own []func(context.Context)
	// Lasting begins with Own, and its context ends when no verb is under way any more.
	Lasting []func(context.Context)
	// Later begins once verbs are served.
	Later []func(context.Context)
	// Sweep is done every Interval. Intervals brings another interval.
	Sweep     func(context.Context)
	Interval  time.Duration
	Intervals <-chan time.Duration
	// Metrics is the TCP address that metrics are served at; "": nowhere.
	Metrics string
	// Serving is told in the log when verbs are served: pairs of keys and values.
	Serving func() []any
}

// Live is the life of a daemon whose ledger and engine are open, until ctx ends. It
// leaves the daemon open. First the socket is there, so that clients wait instead of
// finding nobody; then Life.Resume; then verbs are served. The end is the other way
// round.
func (d *Daemon) Live(ctx context.Context, srv *server.Server, l Life) error {
	if err := srv.Listen(d.Root); noRoom(err) { // deletions that wait need no socket; keepReachable tries again
		d.Log.Error("nobody can reach the agent", "err", err)
	} else if err != nil {
		return err
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
	lasting.end()
	<-served
	return err
}

// group is some of what a daemon does on its own, which ends together.
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

// end ends all, and waits for it.
func (g *group) end() {
	g.cancel()
	ended := make(chan struct{})
	go func() {
		g.all.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(stopping): // for a kind that hangs, and does not hear of the end
		g.Log.Warn("ending, though something of the agent's own has not")
	}
}

// serve resumes, opens the API, and does what the daemon does on its own, until
// ctx ends or the daemon cannot go on. What it begins of lasting goes on behind it.
func (d *Daemon) serve(ctx context.Context, srv *server.Server, l Life, lasting *group) error {
	own := d.group(ctx)
	defer own.end()
	ctx = own.ctx // ends with what this starts, should that end early
	own.begin(l.Early...)
	if l.Metrics != "" {
		own.begin(func(ctx context.Context) { d.keepMetrics(ctx, srv, l.Metrics) })
	}
	mend, err := l.Resume(ctx)
	if err != nil {
		return err
	}
	if ctx.Err() != nil { // told to stop meanwhile: deletions may wait, which come before anybody is served
		return whyEnded(ctx)
	}
	own.begin(l.Own...)
	lasting.begin(l.Lasting...)
	srv.Open()
	d.notify(systemd.SdNotifyReady)
	d.Log.Info("serving", append([]any{"root", d.Root, "instance", d.Instance}, append(l.Serving(),
		"after", time.Since(d.Started).Round(time.Millisecond))...)...)
	usurped := make(chan error, 1)
	own.begin(l.Later...)
	own.begin(mend,
		func(ctx context.Context) { d.KeepSwept(ctx, l) },
		func(ctx context.Context) { d.keepReachable(ctx, srv, usurped) })
	select {
	case <-ctx.Done():
		return whyEnded(ctx)
	case <-d.Ledger.Failed():
		return fmt.Errorf("going on needs a new start: %w", d.Ledger.Writable())
	case err := <-usurped:
		return fmt.Errorf("ending, since the lock of the instance was removed and is another's now: %w", err)
	}
}

// KeepSwept sweeps again and again, until ctx ends. Life.Intervals brings another time
// between two sweeps, also while one is under way.
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
			if !d.sweeping.Taken() { // or the last one goes on still
				sweep.Go(func() { l.Sweep(ctx) })
			}
		}
	}
}

// Between two tries to serve metrics.
const (
	metricsAgain = time.Second
	metricsLater = time.Minute
)

// keepMetrics serves metrics at an address, as soon as nobody else has it. Without them
// the daemon is as useful to pods.
func (d *Daemon) keepMetrics(ctx context.Context, srv *server.Server, addr string) {
	for pause := metricsAgain; ; pause = min(2*pause, metricsLater) {
		_, err := srv.ServeMetrics(addr)
		if err == nil || ctx.Err() != nil {
			return
		}
		d.Log.Error("metrics are not served", "err", err, "next try in", pause)
		Sleep(ctx, pause, nil)
	}
}

// notify tells the supervisor (sd_notify(3)) in a goroutine of its own, and one state
// after the other: a supervisor that does not read its socket keeps nothing here.
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
			d.Log.Warn("telling systemd", "err", err)
		}
	}()
}

// whyEnded is the error that ended a life; nil if the daemon was told to stop.
func whyEnded(ctx context.Context) error {
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

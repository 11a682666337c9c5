package egress

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/berth-net/berth/internal/hold"
)

// retry is how long Run waits after it failed.
const retry = time.Second

// Report is told what Run finds: drift is what was wrong with the table (it
// wraps hold.ErrGone or hold.ErrChanged; nil: the table could not be watched or
// read), err why it is not mended; nil if it is.
type Report func(drift, err error)

// Run watches the table and puts it back when somebody changes or deletes it,
// as long as an owner has it, until ctx ends. A failure is reported and tried
// again every second.
func (e *Egress) Run(ctx context.Context, report Report) {
	for ctx.Err() == nil {
		if err := e.watch(ctx, report); ctx.Err() == nil {
			report(nil, err)
			pause(ctx)
		}
	}
}

// watch is Run until the watch breaks.
func (e *Egress) watch(ctx context.Context, report Report) error {
	e.mu.Lock()
	instance := e.want.Instance
	e.mu.Unlock()
	w, err := e.tables.Watch(instance)
	if err != nil {
		return err
	}
	defer w.Close()

	// What was seen before the watch began may have changed since.
	e.sound.Store(0)
	e.watching.Store(true)
	defer e.watching.Store(false)
	mended := e.mend(report, false)
	for {
		wait, stop := ctx, context.CancelFunc(func() {})
		if !mended {
			wait, stop = context.WithTimeout(ctx, retry)
		}
		news, err := w.Next(wait)
		stop()
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, context.DeadlineExceeded): // time to try again
		case err != nil:
			return err
		default:
			e.touched.Store(uint32(news.Made))
			if e.Intact() {
				continue // news of our own doing, looked at since
			}
		}
		mended = e.mend(report, news.Gone)
	}
}

// mend puts the table right if somebody has it, and reports whether it is. One
// that is known to be gone is written without a look: until it is there, nothing
// is cut off by it.
func (e *Egress) mend(report Report, gone bool) bool {
	e.mu.Lock()
	if e.held == "" || gone && e.Intact() { // or somebody else has been quicker
		e.mu.Unlock()
		return true
	}
	want := e.wanted(e.held, e.want.Instance)
	var drift error
	if gone {
		drift = fmt.Errorf("nftables table inet %s is %w", want.Table(), hold.ErrGone)
		e.sound.Store(0)
		e.differs()
	} else {
		drift = e.compare(want)
	}
	err := drift
	if errors.Is(drift, hold.ErrGone) || errors.Is(drift, hold.ErrChanged) {
		err = e.write(want)
	} else {
		drift = nil
	}
	e.mu.Unlock()
	if drift != nil || err != nil {
		report(drift, err)
	}
	return err == nil
}

// pause waits for the next try.
func pause(ctx context.Context) {
	t := time.NewTimer(retry)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

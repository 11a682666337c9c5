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
// wraps hold.ErrGone or hold.ErrChanged), err why it is not mended; nil if it is.
// drift alone is nil where the table could not be watched or read. Both are where
// others have touched the table, or may have, and it is as it should be again: it may
// have been out of force meanwhile.
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
	touched := true // by others, since it was last reported to be right
	look := func(gone bool) (mended bool) {
		held, drift, err := e.mend(gone)
		touched = touched || drift != nil
		if err != nil || held && touched {
			report(drift, err)
			touched = touched && err != nil
		}
		return err == nil
	}
	mended := look(false)
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
			touched = touched || news.Others
			if e.Intact() && !touched {
				continue // news of our own doing, looked at since
			}
		}
		mended = look(news.Gone)
	}
}

// mend puts the table right if somebody has it (held), and returns what was wrong and
// why that is not mended. One that is known to be gone is written without a look: until
// it is there, nothing is cut off by it.
func (e *Egress) mend(gone bool) (held bool, drift, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.held == "" || e.Intact() { // or somebody else has been quicker
		return e.held != "", nil, nil
	}
	want := e.wanted(e.held, e.want.Instance)
	if gone {
		drift = fmt.Errorf("nftables table inet %s is %w", want.Table(), hold.ErrGone)
		e.sound.Store(0)
		e.differs()
	} else {
		drift = e.compare(want)
	}
	if errors.Is(drift, hold.ErrGone) || errors.Is(drift, hold.ErrChanged) {
		return true, drift, e.write(want)
	}
	return true, nil, drift
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

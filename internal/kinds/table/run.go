package table

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel/nft"
)

// retry is how long Run waits after it failed.
const retry = time.Second

// Run calls a Report with what it finds:
//   - drift says what was wrong with the table (it wraps hold.ErrGone or hold.ErrChanged);
//     err is nil if Run has mended the table, else the reason why it could not;
//   - if only drift is nil, Run could not watch or read the table, as err says;
//   - if both are nil, the table is right, but others have touched it since Run began, or may have,
//     and its rules may have been out of force meanwhile.
type Report func(drift, err error)

// Run watches the table until ctx ends. As long as an owner has the table, Run puts it back
// when somebody changes or deletes it. Run reports a failure and tries again every second.
func (k *Keeper) Run(ctx context.Context, report Report) {
	for first := true; ctx.Err() == nil; first = false {
		if err := k.watch(ctx, first, report); ctx.Err() == nil {
			report(nil, err)
			pause(ctx)
		}
	}
}

// watch does what Run does until the Watch breaks. first says that this is Run's first watch: between
// two watches others may have touched the table unseen.
func (k *Keeper) watch(ctx context.Context, first bool, report Report) error {
	k.mu.Lock()
	instance := k.want.Instance
	k.mu.Unlock()
	w, err := k.tables.Watch(instance)
	if err != nil {
		return err
	}
	defer w.Close()

	// The table may have changed between the last look at it and the watch's beginning.
	k.sound.Store(0)
	k.noting.Store(false)
	k.watching.Store(true)
	ctx, stop := context.WithCancel(ctx)
	changes, ended := k.listen(ctx, w)
	defer func() { stop(); <-ended }() // then w can be closed
	touched := !first                  // since Run last reported that the table is right, others have touched it, or may have
	look := func() (mended bool) {
		held, drift, err := k.mend()
		touched = touched || drift != nil
		if err != nil || held && touched {
			report(drift, err)
			touched = touched && err != nil
		}
		return err == nil
	}
	mended := look()
	for {
		var again <-chan time.Time
		if !mended {
			again = time.After(retry)
		}
		select {
		case err := <-ended:
			return err
		case <-again:
			mended = look()
		case others := <-changes:
			touched = touched || others
			if k.Intact() && !touched {
				continue // Keeper itself made the change, and has looked at the table since
			}
			mended = look()
		}
	}
}

// listen notes each transaction that touches the table as soon as its news come, whatever Run is about meanwhile: no
// caller takes the table for intact while Run mends another difference, or while a Report takes its time. changes tells Run of
// them, several at once if Run is late, and whether others made some. ended gives the reason when listen has ended, and is
// closed then.
func (k *Keeper) listen(ctx context.Context, w *nft.Watch) (changes <-chan bool, ended <-chan error) {
	all, end := make(chan bool, 1), make(chan error, 1)
	go func() {
		defer close(end)
		for {
			news, err := w.Next(ctx)
			if err != nil {
				k.watching.Store(false)
				end <- err
				return
			}
			k.heard(news)
			select {
			case others := <-all: // Run has not read it yet
				news.Others = news.Others || others
			default:
			}
			all <- news.Others
		}
	}()
	return all, end
}

// heard notes a transaction that touched the table. A transaction of Keeper's own leaves the table as
// right as it was: Keeper compares a table that it has written anew, and knows the host ports that it
// maps.
func (k *Keeper) heard(news nft.News) {
	if news.Others {
		k.noting.Store(false)
	}
	sound := k.sound.Load()
	if !news.Others && sound != 0 && k.Intact() && nft.Generation(sound).Before(news.Made) {
		k.sound.CompareAndSwap(sound, uint32(news.Made))
	}
	k.gone.Store(news.Gone)
	k.touched.Store(uint32(news.Made))
}

// mend puts the table right if an owner has it. It reports whether an owner has the table (held), what
// was wrong (drift), and why mend could not put it right (err). If the last news say that the table is gone,
// mend writes the table without reading it first, because until then the table cuts off no link.
func (k *Keeper) mend() (held bool, drift, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.held == "" || k.Intact() { // intact: another caller has put it right already
		return k.held != "", nil, nil
	}
	if err := k.learn(); err != nil {
		return true, nil, err
	}
	want := k.wanted(k.held, k.want.Instance)
	if k.gone.Load() {
		drift = fmt.Errorf("nftables table inet %s is %w", want.Table(), hold.ErrGone)
		k.sound.Store(0)
		k.differs()
	} else {
		drift = k.compare(want)
	}
	if errors.Is(drift, hold.ErrGone) || errors.Is(drift, hold.ErrChanged) {
		return true, drift, k.write(want)
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

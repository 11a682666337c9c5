package drain

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/berth-net/berth/internal/deletions"
	"github.com/berth-net/berth/internal/patience"
	"github.com/berth-net/berth/internal/turn"
)

// queue is the agent's end of the deletion queue.
type queue struct {
	*deletions.Queue
	news  chan struct{}  // has a token when there may be something new
	turn  turn.One       // an adoption has it, from the look to the commit
	calls patience.Calls // to the folder; the folder's file system may hang
	told  atomic.Int64   // how often the watch has told of something new
	done  atomic.Int64   // the value of told at the start of the last drain that did all deletions; -1: no drain has
	room  room           // the spare files
}

// How long callers wait for the folder. A call that takes longer goes on by itself.
const (
	lookLimit  = 2 * time.Second
	drainLimit = 5 * time.Second
	fillLimit  = 10 * time.Second
)

// Names of calls to the folder.
const (
	looking   = "look"
	surveying = "survey"
	draining  = "drain"
	refilling = "refill"
)

// Quiet reports whether no deletion can wait: a drain has done all that waited, and the
// kernel has told of nothing new since. Quiet does not ask the folder, which may hang.
func (q *queue) Quiet() bool { return q.done.Load() == q.told.Load() }

// Answers looks at the folder as an ADD does, and returns why the look fails; nil: it works. Answers
// does not ask a folder for which a Survey has just waited in vain.
func (q *queue) Answers() error {
	if q.calls.Hang(surveying) {
		return fmt.Errorf("looking for queued deletions: %w", patience.ErrHangs)
	}
	_, err := patience.Call(&q.calls, looking, lookLimit, q.Waiting, nil)
	if err != nil {
		err = fmt.Errorf("looking for queued deletions: %w", err)
	}
	return err
}

// open opens the queue and watches it, so that no deletion that is written from now on is
// missed.
func (d *Drain) open(noticed func(watch func(func()) error, changed func()) error) error {
	q, err := deletions.Open(d.Root)
	if err != nil {
		return err
	}
	if err := q.TakeBack(); err != nil { // what was set aside stays there, for people
		d.Log.Warn("could not look again at deletions that were set aside", "err", err)
	}
	d.Queue, d.news, d.room.few = q, make(chan struct{}, 1), make(chan struct{}, 1)
	d.done.Store(-1)
	err = noticed(q.Watch, func() {
		d.told.Add(1)
		select {
		case d.news <- struct{}{}:
		default:
		}
	})
	if err != nil {
		return errors.Join(err, q.Close())
	}
	return nil
}

// Survey is deletions.Look, but waits no longer than lookLimit, because a person waits for it.
func (d *Drain) Survey() (deletions.Survey, error) {
	s, err := patience.Call(&d.calls, surveying, lookLimit, func() (deletions.Survey, error) { return deletions.Look(d.Root) }, nil)
	if err == patience.ErrHangs {
		err = fmt.Errorf("looking at %s: %w", deletions.Path(d.Root), err)
	}
	return s, err
}

// Soon makes Keep try the deletions that wait.
func (d *Drain) Soon() {
	select {
	case d.news <- struct{}{}:
	default: // Keep is about to try them
	}
}

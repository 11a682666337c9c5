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

// leastSpares is how few spare files there may be for new pods to be attached: so many
// deletions can be written down on a full disk.
const leastSpares = 64

// errNoSpares is what keeps an ADD off a disk on which its DEL may find no room.
var errNoSpares = errors.New("too little room is kept for deletions while no agent runs")

// queue is the agent's end of the deletion queue.
type queue struct {
	*deletions.Queue
	news  chan struct{}         // has a token when there may be something new
	spare atomic.Pointer[error] // why there are too few spare files; nil: there are enough
	turn  turn.One              // of who adopts, from the look to the commit
	calls patience.Calls        // to the folder, whose file system may hang
	told  atomic.Int64          // how often something new was told of
	done  atomic.Int64          // what told was when all that waited was done
}

// How long the folder may take to answer. What takes longer goes on by itself.
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

// Quiet reports whether nothing can wait: all that did was done, and the kernel, which
// asks no file system, has told of nothing since.
func (q *queue) Quiet() bool { return q.done.Load() == q.told.Load() }

// Answers says why the folder cannot be looked at, as an ADD looks; nil: it can. Of a
// folder that a Survey has just waited for in vain it asks no more.
func (q *queue) Answers() error {
	if q.calls.Hang(surveying) {
		return fmt.Errorf("looking for deletions: %w", patience.ErrHangs)
	}
	_, err := patience.Call(&q.calls, looking, lookLimit, q.Waiting, nil)
	if err != nil {
		err = fmt.Errorf("looking for deletions: %w", err)
	}
	return err
}

// open opens the queue and watches it: what is written from now on is
// noticed.
func (d *Drain) open(noticed func(*deletions.Queue, func()) error) error {
	q, err := deletions.Open(d.Root)
	if err != nil {
		return err
	}
	if err := q.TakeBack(); err != nil { // it stays where it is, for people
		d.Log.Warn("looking for deletions among those that were set aside", "err", err)
	}
	d.Queue, d.news = q, make(chan struct{}, 1)
	d.done.Store(-1)
	err = noticed(q, func() {
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

// KeepSpares keeps room for deletions on a disk that is full by then. While
// there is too little of it no pod is attached: its deletion might fail.
func (d *Drain) KeepSpares() {
	n, err := patience.Call(&d.calls, refilling, fillLimit, d.Refill, nil)
	if err == patience.ErrHangs { // Key says so to those who attach pods
		d.Log.Warn("keeping room for deletions", "err", err)
		return
	}
	if err != nil {
		d.Log.Warn("keeping room for deletions", "spare files", n, "err", err)
	}
	if err == nil || n >= leastSpares {
		d.spare.Store(nil)
		return
	}
	err = fmt.Errorf("%w: %d spare files, and %d are needed: %w", errNoSpares, n, leastSpares, err)
	d.spare.Store(&err)
}

// Spared says why too little room is kept for deletions, or nil.
func (d *Drain) Spared() error {
	if err := d.spare.Load(); err != nil {
		return *err
	}
	return nil
}

// Survey is deletions.Look, for as long as a person waits.
func (d *Drain) Survey() (deletions.Survey, error) {
	s, err := patience.Call(&d.calls, surveying, lookLimit, func() (deletions.Survey, error) { return deletions.Look(d.Root) }, nil)
	if err == patience.ErrHangs {
		err = fmt.Errorf("looking at %s: %w", deletions.Path(d.Root), err)
	}
	return s, err
}

// Soon has Keep try the deletions that wait.
func (d *Drain) Soon() {
	select {
	case d.news <- struct{}{}:
	default: // and is about to
	}
}

package history

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/patience"
)

const (
	// gather is how long the history waits for more records before it writes.
	gather = 200 * time.Millisecond
	// hanging is how long the history waits for its disk.
	hanging = time.Second
	// again and later are the pauses after a write that failed, at first and at most.
	again, later = time.Second, time.Minute
	// maxQueue is how many bytes of records wait in memory. If there are more, put drops the oldest
	// records.
	maxQueue = 1 << 20
	// look is how often the history looks whether records are too old.
	look = 10 * time.Minute
)

// Limits are how much the history keeps.
type Limits struct {
	Records int           // 0: nothing
	Age     time.Duration // since the attachment ended
}

// Options are a history's parts.
type Options struct {
	Dir    string
	Limits func() Limits // may change
	Log    *slog.Logger
	Now    func() Now
}

// History takes records, and writes them when Settle says so, or soon after by itself. All methods
// may be called at once.
type History struct {
	Options
	calls *patience.Calls
	news  chan struct{} // has a token when there are records to write

	writing sync.Mutex // its holder writes
	folder  *folder    // nil: not opened, or left to a call that hangs

	mu     sync.Mutex
	queue  []line // to be written, the oldest first; those that are being written are among them
	bytes  int    // of queue
	taken  uint64 // how many lines were ever put into queue
	lost   uint64
	failed error // why the last write failed; nil: it did not
}

// line is a record that waits.
type line struct {
	text []byte
	end  ending
	n    uint64 // the line's number, counted over all lines
}

// New returns a history. It touches nothing on the disk.
func New(o Options) *History {
	return &History{Options: o, calls: &patience.Calls{}, news: make(chan struct{}, 1)}
}

// Add takes the record of an attachment that ends now. It does not wait for anything, and does not
// use p's slices once it has returned.
func (h *History) Add(p api.Past) { h.add(record{Past: p}) }

// Correct takes the record of an attachment if the history may have another record of it: from now
// on readers leave out the other record.
func (h *History) Correct(p api.Past) { h.add(record{Past: p, Corrects: true}) }

func (h *History) add(r record) {
	if h.Limits().Records == 0 {
		return
	}
	now := h.Now()
	r.Boot, r.At = now.Boot, now.Boottime
	buf := buffers.Get().(*bytes.Buffer)
	text, err := encode(buf, r)
	buffers.Put(buf)
	h.mu.Lock()
	defer h.mu.Unlock()
	if err != nil {
		h.lost++
		return
	}
	h.put(line{text: text, end: r.ending()})
	select {
	case h.news <- struct{}{}:
	default:
	}
}

var buffers = sync.Pool{New: func() any { return new(bytes.Buffer) }}

// put adds a line to the queue, and drops the oldest ones if there are too many. h.mu is held.
func (h *History) put(l line) {
	h.taken++
	l.n = h.taken
	h.queue = append(h.queue, l)
	h.bytes += len(l.text)
	for h.bytes > maxQueue {
		h.bytes -= len(h.queue[0].text)
		h.queue = h.queue[1:]
		h.lost++
	}
}

// Keep writes records as they come, until ctx ends.
func (h *History) Keep(ctx context.Context) {
	looks := time.NewTicker(look)
	defer looks.Stop()
	failures := 0
	for {
		select {
		case <-ctx.Done():
			return
		case <-looks.C:
		case <-h.news:
		}
		wait := gather
		if failures > 0 {
			wait = patience.Backoff(again, later, failures)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		if err := h.Flush(); err != nil {
			failures++
			h.rouse()
			continue
		}
		failures = 0
	}
}

func (h *History) rouse() {
	select {
	case h.news <- struct{}{}:
	default:
	}
}

// Settle writes what was added, so that it does not get lost with this process. It waits for the
// disk for a second at most. If the last write has failed, Settle leaves it to Keep to try again.
func (h *History) Settle() {
	h.mu.Lock()
	last := h.taken
	h.mu.Unlock()
	h.writing.Lock()
	defer h.writing.Unlock()
	h.mu.Lock()
	waits := len(h.queue) > 0 && h.queue[0].n <= last && h.failed == nil // else another call has written the lines, or Keep tries again
	h.mu.Unlock()
	if waits {
		_ = h.flush() // flush has logged an error, and Keep tries again
	}
}

// Flush writes what waits, and removes what is too old or too much. It waits for the disk for a
// second at most. After that second, records under way count as lost, although the disk may still
// take them.
func (h *History) Flush() error {
	h.writing.Lock()
	defer h.writing.Unlock()
	return h.flush()
}

// flush is Flush. h.writing is held.
func (h *History) flush() error {
	if h.calls.Hang(h.Dir) {
		return patience.ErrHangs
	}
	h.mu.Lock()
	queue := slices.Clone(h.queue)
	h.mu.Unlock()
	f := h.folder
	if f == nil {
		f = &folder{dir: h.Dir}
	}
	limits, now := h.Limits(), h.Now()
	written, err := patience.Call(h.calls, h.Dir, hanging, func() (int, error) { return f.write(queue, limits, now) }, nil)
	h.folder = nil
	switch {
	case errors.Is(err, patience.ErrHangs): // f belongs to the call that hangs, for good
		h.mu.Lock()
		h.lost += uint64(len(queue))
		h.mu.Unlock()
		written = len(queue)
	case err != nil:
		f.close()
	default:
		h.folder = f
	}
	h.wrote(queue[:written])
	h.note(err)
	return err
}

// wrote takes lines out of the queue.
func (h *History) wrote(lines []line) {
	if len(lines) == 0 {
		return
	}
	last := lines[len(lines)-1].n
	h.mu.Lock()
	defer h.mu.Unlock()
	for len(h.queue) > 0 && h.queue[0].n <= last {
		h.bytes -= len(h.queue[0].text)
		h.queue = h.queue[1:]
	}
	if len(h.queue) == 0 {
		h.queue = nil // gives the memory of a burst back
	}
}

// note says once that the history cannot be written, and once that it can again.
func (h *History) note(err error) {
	h.mu.Lock()
	before, lost := h.failed, h.lost
	h.failed = err
	h.mu.Unlock()
	switch {
	case err != nil && before == nil:
		h.Log.Warn("could not write the history of pods that are gone; nothing else is affected", "err", err)
	case err == nil && before != nil:
		h.Log.Info("the history can be written again", "lost", lost)
	}
}

// Trouble returns how many records this run could not write, and why the last write failed,
// if it did.
func (h *History) Trouble() (lost uint64, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.lost, h.failed
}

// Close writes what is left. It waits for the disk for a second at most.
func (h *History) Close() {
	h.mu.Lock()
	waits := len(h.queue) > 0
	h.mu.Unlock()
	if waits {
		_ = h.Flush() // Flush has logged an error
	}
	h.writing.Lock()
	defer h.writing.Unlock()
	if h.folder != nil {
		h.folder.close()
	}
}

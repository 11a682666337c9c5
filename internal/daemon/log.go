package daemon

import (
	"io"
	"sync"
	"time"
)

// logRoom is how many bytes of lines may wait for the reader of a log.
const logRoom = 1 << 20

// LogWriter writes lines to a log that may block for ever: a pipe or a terminal that nobody
// reads, or the socket of a logger that is stopped. Write itself never waits, because the
// caller may have a pod to detach. If there is no room for all lines that wait, LogWriter
// drops the oldest ones, and writes into the log how many when somebody reads the log
// again.
type LogWriter struct {
	to   io.Writer
	room int

	mu      sync.Mutex
	more    sync.Cond // signalled when lines has got a line, and when the writer is closed
	lines   [][]byte
	size    int                    // of all lines, in bytes
	dropped int                    // how many lines the log lacks and does not mention yet
	missing func(lines int) []byte // the line that says how many lines the log lacks
	closed  bool
	done    chan struct{} // closed when all is written
}

// NewLogWriter returns a LogWriter. A goroutine writes its lines until Close.
func NewLogWriter(to io.Writer) *LogWriter { return newLogWriter(to, logRoom) }

func newLogWriter(to io.Writer, room int) *LogWriter {
	w := &LogWriter{to: to, room: room, done: make(chan struct{})}
	w.more.L = &w.mu
	w.missing = missingIn(text)
	go w.keepWriting()
	return w
}

// Write queues one line. It always succeeds.
func (w *LogWriter) Write(line []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lines = append(w.lines, append([]byte(nil), line...))
	w.size += len(line)
	for w.size > w.room && len(w.lines) > 1 { // the newest line stays: it says most
		w.size -= len(w.lines[0])
		w.lines = w.lines[1:]
		w.dropped++
	}
	w.more.Signal()
	return len(line), nil
}

// Close lets the writing end, and returns when all lines are written, or when patience has
// passed. It must be called only once.
func (w *LogWriter) Close(patience time.Duration) {
	w.mu.Lock()
	w.closed = true
	w.more.Signal()
	w.mu.Unlock()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-w.done:
	case <-timer.C:
	}
}

func (w *LogWriter) keepWriting() {
	defer close(w.done)
	for {
		line, dropped, more := w.next()
		if !more {
			return
		}
		if dropped > 0 {
			_, err := w.to.Write(w.missed(dropped))
			w.miss(dropped, err)
		}
		_, err := w.to.Write(line)
		w.miss(1, err)
	}
}

// missed returns the line that says how many lines the log lacks.
func (w *LogWriter) missed(lines int) []byte {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.missing(lines)
}

// next waits for the next line. dropped is how many lines before it the log lacks. more is
// false if the writer is closed and all lines are taken.
func (w *LogWriter) next() (line []byte, dropped int, more bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for len(w.lines) == 0 && !w.closed {
		w.more.Wait()
	}
	if len(w.lines) == 0 {
		return nil, 0, false
	}
	line, dropped = w.lines[0], w.dropped
	w.lines, w.dropped = w.lines[1:], 0
	w.size -= len(line)
	return line, dropped, true
}

// miss counts lines that could not be written, for example because the disk is full.
func (w *LogWriter) miss(lines int, err error) {
	if err == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.dropped += lines
}

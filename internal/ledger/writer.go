package ledger

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// maxBatch limits how many bytes one transaction writes, as steps count them. A single commit
// may have more.
const maxBatch = 2 << 20

// request is a commit on its way.
type request struct {
	steps []step
	bytes int
	state atomic.Int32 // waiting, then taken or withdrawn
	err   error        // the outcome; set before done is closed
	done  chan struct{}
}

const (
	waiting = iota
	taken
	withdrawn
)

// queue holds the commits that wait for the writer.
type queue struct {
	mu     sync.Mutex
	list   []*request
	closed bool
	wake   chan struct{} // has one token if there may be work
}

func (q *queue) put(r *request) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return ErrClosed
	}
	q.list = append(q.list, r)
	q.signal()
	return nil
}

// take returns the next batch of requests, oldest first, without those that were withdrawn;
// and whether the queue is closed.
func (q *queue) take() (batch []*request, closed bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	bytes, n := 0, 0
	for ; n < len(q.list) && (bytes == 0 || bytes+q.list[n].bytes <= maxBatch); n++ {
		if r := q.list[n]; r.state.CompareAndSwap(waiting, taken) {
			batch = append(batch, r)
			bytes += r.bytes
		}
	}
	q.list = q.list[n:]
	if len(q.list) > 0 {
		q.signal()
	}
	return batch, q.closed
}

func (q *queue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	q.signal()
}

func (q *queue) signal() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// Commit does all of the ops, or none. When it returns nil they are durable and readers see
// them; after an error nothing has changed. Commits that wait at the same time share a
// transaction, and one that is refused does not harm the others.
//
// If ctx ends before the ops were taken into a transaction, Commit withdraws them. If it
// ends later, Commit waits for the outcome, which takes as long as the disk does.
//
// The errors are the ops' errors, ctx.Err(), ErrClosed, and the error of a failed transaction. If
// nobody knows what a failed transaction left on the disk, that commit and every later one
// fail with ErrFailed.
func (l *Ledger) Commit(ctx context.Context, ops ...Op) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	r := &request{steps: make([]step, len(ops)), done: make(chan struct{})}
	for i, op := range ops {
		s, err := op.ready(l)
		if err != nil {
			return err
		}
		r.steps[i] = s
		r.bytes += s.bytes
	}
	if err := l.queue.put(r); err != nil {
		return err
	}
	select {
	case <-r.done:
		return r.err
	case <-ctx.Done():
	}
	if r.state.CompareAndSwap(waiting, withdrawn) {
		return ctx.Err()
	}
	<-r.done
	return r.err
}

// write is the writer's goroutine.
func (l *Ledger) write() {
	defer close(l.gone)
	quiet := time.NewTicker(cmp.Or(l.opts.pruneEvery, pruneEvery))
	defer quiet.Stop()
	for {
		select {
		case <-l.queue.wake:
		case <-quiet.C:
			l.look()
			l.prune()
			l.afterwards()
			continue
		case <-l.store.rewritten():
			l.store.takeOver(0)
			l.afterwards()
			continue
		}
		requests, closed := l.queue.take()
		if closed {
			for len(requests) > 0 {
				answer(requests, ErrClosed)
				requests, _ = l.queue.take()
			}
			return
		}
		if len(requests) > 0 {
			l.transact(requests)
		}
	}
}

// transact puts requests into one transaction and answers them.
func (l *Ledger) transact(requests []*request) {
	began := time.Now()
	l.look()
	if err := l.store.failed; err != nil {
		answer(requests, err)
		return
	}
	b := l.newBatch()
	accepted := requests[:0]
	ops := 0
	for _, r := range requests {
		if err := b.stage(r.steps); err != nil {
			l.stats.refused.Add(1)
			answer([]*request{r}, err)
			continue
		}
		accepted = append(accepted, r)
		ops += len(r.steps)
	}
	if !b.empty() {
		change := b.change()
		if err := l.store.write(b); err != nil {
			l.stats.failed.Add(uint64(len(accepted)))
			l.stats.set(l.store, l.sizes())
			answer(accepted, fmt.Errorf("writing ledger: %w", err))
			l.settle()
			return
		}
		l.mu.Lock()
		turned := b.epoch != l.state.epoch
		b.merge()
		l.state.seq = l.store.seq()
		l.mu.Unlock()
		if turned {
			l.prune()
		}
		l.opts.Applied(change)
		l.stats.batch(len(accepted), time.Since(began))
	}
	l.stats.commits.Add(uint64(len(accepted)))
	l.stats.ops.Add(uint64(ops))
	l.stats.set(l.store, l.sizes())
	answer(accepted, nil)
	l.afterwards()
}

// afterwards does what no commit waits for: it grows the file ahead of need, and begins to write it
// anew.
func (l *Ledger) afterwards() {
	l.store.topUp()
	if l.store.outgrown() {
		l.prune()
		l.store.rewrite(l.state.contents())
	}
	l.settle()
}

// settle brings the figures of the file up to date, and tells callers (Failed) if the store has
// failed for good.
func (l *Ledger) settle() {
	l.stats.set(l.store, l.sizes())
	if l.store.failed != nil && !l.over {
		l.over = true
		close(l.failed)
	}
}

func answer(requests []*request, err error) {
	for _, r := range requests {
		r.err = err
		close(r.done)
	}
}

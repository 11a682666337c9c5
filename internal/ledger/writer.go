package ledger

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// maxPages limits how many pages one transaction writes, as steps count them, so that the
// reserve of spare pages is enough for it (space.go). A single commit may have more.
const maxPages = 768

// request is a commit on its way.
type request struct {
	steps []step
	pages int
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
	pages, n := 0, 0
	for ; n < len(q.list) && (pages == 0 || pages+q.list[n].pages <= maxPages); n++ {
		if r := q.list[n]; r.state.CompareAndSwap(waiting, taken) {
			batch = append(batch, r)
			pages += r.pages
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
// Errors are those of the ops, ctx.Err(), ErrClosed, and that of a failed transaction. If
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
		r.pages += s.pages
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
	for range l.queue.wake {
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
		b.prune(&l.store.pruning)
		if err := l.store.write(b); err != nil {
			l.stats.failed.Add(uint64(len(accepted)))
			l.stats.set(l.store, l.sizes())
			answer(accepted, fmt.Errorf("writing ledger: %w", err))
			if l.store.failed != nil { // there will be no further write
				close(l.failed)
			}
			return
		}
		l.mu.Lock()
		b.merge()
		l.mu.Unlock()
		l.opts.Applied(change)
		l.stats.batch(len(accepted), time.Since(began))
	}
	l.stats.commits.Add(uint64(len(accepted)))
	l.stats.ops.Add(uint64(ops))
	l.stats.set(l.store, l.sizes())
	answer(accepted, nil)
	l.store.topUp(len(l.state.owners))
	l.stats.set(l.store, l.sizes())
}

func answer(requests []*request, err error) {
	for _, r := range requests {
		r.err = err
		close(r.done)
	}
}

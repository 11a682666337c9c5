package agent

import (
	"context"
	"sync"

	"github.com/berth-net/berth/internal/attachment"
)

// keys gives every attachment's key one order: ADDs of one key run one after
// another, as they came. DEL does not queue here; it overtakes (see del.go).
type keys struct {
	mu   sync.Mutex
	tail map[attachment.Key]chan struct{} // closed when the latest in line is done
}

func newKeys() *keys { return &keys{tail: map[attachment.Key]chan struct{}{}} }

// lock waits for the key's turn. One that gives up waiting keeps its place
// until those before it are done, so that nobody behind it comes too early.
func (k *keys) lock(ctx context.Context, key attachment.Key) (unlock func(), err error) {
	mine := make(chan struct{})
	k.mu.Lock()
	before := k.tail[key]
	k.tail[key] = mine
	k.mu.Unlock()

	done := func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		if k.tail[key] == mine {
			delete(k.tail, key)
		}
		close(mine)
	}
	if before == nil {
		return done, nil
	}
	select {
	case <-before:
		return done, nil
	case <-ctx.Done():
		go func() {
			<-before
			done()
		}()
		return nil, context.Cause(ctx)
	}
}

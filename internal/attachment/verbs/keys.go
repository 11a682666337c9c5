package verbs

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/berth-net/berth/internal/attachment"
)

// repeats is how many ADDs of one key may wait for the one that has its turn. A
// runtime has one under way, and maybe one that it has given up.
const repeats = 8

// errRepeated says that too many ADDs of one key wait already.
var errRepeated = errors.New("ADDs of the same attachment wait already")

// keys gives every attachment's key one order: ADDs of one key run one after
// another, as they came. DEL does not queue here; it overtakes (see del.go).
type keys struct {
	mu    sync.Mutex
	lines map[attachment.Key][]chan struct{} // of keys whose turn somebody has: who waits, each closed when its turn comes
}

func newKeys() *keys { return &keys{lines: map[attachment.Key][]chan struct{}{}} }

// lock waits for the key's turn. Behind one that hangs no more than repeats wait,
// and none longer than its context; who has given up costs nothing.
func (k *keys) lock(ctx context.Context, key attachment.Key) (unlock func(), err error) {
	k.mu.Lock()
	line, taken := k.lines[key]
	if !taken {
		k.lines[key] = nil
		k.mu.Unlock()
		return func() { k.next(key) }, nil
	}
	if len(line) >= repeats {
		k.mu.Unlock()
		return nil, fmt.Errorf("%d %w", len(line), errRepeated)
	}
	mine := make(chan struct{})
	k.lines[key] = append(line, mine)
	k.mu.Unlock()

	select {
	case <-mine:
		return func() { k.next(key) }, nil
	case <-ctx.Done():
	}
	k.mu.Lock()
	at := slices.Index(k.lines[key], mine)
	if at >= 0 {
		k.lines[key] = slices.Delete(k.lines[key], at, at+1)
	}
	k.mu.Unlock()
	if at < 0 { // its turn has come in this very moment
		k.next(key)
	}
	return nil, context.Cause(ctx)
}

// next gives the turn to whoever has waited longest.
func (k *keys) next(key attachment.Key) {
	k.mu.Lock()
	defer k.mu.Unlock()
	line := k.lines[key]
	if len(line) == 0 {
		delete(k.lines, key)
		return
	}
	k.lines[key] = line[1:]
	close(line[0])
}

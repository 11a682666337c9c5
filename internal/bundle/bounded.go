package bundle

import "sync"

// bounded keeps the first or the last bytes of what is written to it. A writer may go on writing
// after end was called.
type bounded struct {
	max  int
	tail bool // keep the last bytes

	mu    sync.Mutex
	kept  []byte
	cut   int // how many bytes were not kept
	ended bool
}

// Write keeps what there is room for. It never fails: a part that is too large goes on to its
// end, or to its limit of time.
func (b *bounded) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := len(p)
	switch {
	case b.ended:
	case b.tail:
		b.kept = append(b.kept, p...)
		// To cut only when there is twice as much as max costs less than to cut at each write.
		if len(b.kept) > 2*b.max {
			b.trim()
		}
	default:
		room := min(b.max-len(b.kept), n)
		b.kept = append(b.kept, p[:room]...)
		b.cut += n - room
	}
	return n, nil
}

// trim cuts off the beginning of what is too long.
func (b *bounded) trim() {
	if over := len(b.kept) - b.max; over > 0 {
		b.kept = append([]byte(nil), b.kept[over:]...)
		b.cut += over
	}
}

// end returns what was kept, and how many bytes were not. Later writes are lost.
func (b *bounded) end() (kept []byte, cut int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.trim()
	b.ended = true
	return b.kept, b.cut
}

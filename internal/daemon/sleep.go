package daemon

import (
	"context"
	"time"
)

// Sleep waits for d, until early has something to receive, or until ctx ends.
func Sleep(ctx context.Context, d time.Duration, early <-chan struct{}) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-early:
	case <-ctx.Done():
	}
}

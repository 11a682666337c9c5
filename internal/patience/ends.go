package patience

import (
	"sync"
	"time"
)

// Ends waits until all goroutines of a group have ended, for limit at most, and reports whether
// they have.
func Ends(all *sync.WaitGroup, limit time.Duration) bool {
	ended := make(chan struct{})
	go func() {
		all.Wait()
		close(ended)
	}()
	late := time.NewTimer(limit)
	defer late.Stop()
	select {
	case <-ended:
		return true
	case <-late.C:
		return false
	}
}

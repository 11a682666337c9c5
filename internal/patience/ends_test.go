package patience

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for took, want := range map[time.Duration]bool{0: true, time.Second: true, time.Minute: false} {
			var all sync.WaitGroup
			all.Go(func() { time.Sleep(took) })
			begun := time.Now()
			if got := Ends(&all, 2*time.Second); got != want || time.Since(begun) > 2*time.Second {
				t.Errorf("goroutines that take %s: ended %t, after %s", took, got, time.Since(begun))
			}
			all.Wait()
		}
	})
}

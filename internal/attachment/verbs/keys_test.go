package verbs

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berth-net/berth/internal/attachment"
)

// An ADD that hangs keeps few of those that repeat it, and none longer than its
// context; who has given up costs nothing. The others' turns come in their order.
func TestHangingAddKeepsFewRepeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, key := newKeys(), attachment.Key{Network: "net", ContainerID: "c", Ifname: "eth0"}
		unlock, err := k.lock(t.Context(), key)
		must(t, err)
		before := runtime.NumGoroutine()
		for range 1000 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			if _, err := k.lock(ctx, key); !errors.Is(err, context.DeadlineExceeded) {
				t.Fatalf("behind one that hangs: %v", err)
			}
			cancel()
		}
		synctest.Wait()
		if left := runtime.NumGoroutine() - before; left > 5 {
			t.Errorf("1000 repeats have left %d goroutines", left)
		}
		turns := make(chan int, repeats)
		for i := range repeats {
			go func() {
				unlock, err := k.lock(t.Context(), key)
				if err != nil {
					t.Error(err)
					return
				}
				turns <- i
				unlock()
			}()
			synctest.Wait()
		}
		_, err = k.lock(t.Context(), key)
		if !errors.Is(err, errRepeated) {
			t.Errorf("one too many: %v", err)
		}
		unlock()
		for i := range repeats {
			if got := <-turns; got != i {
				t.Errorf("turn %d is that of repeat %d", i, got)
			}
		}
		synctest.Wait()
		if len(k.lines) > 0 {
			t.Errorf("%d keys are left", len(k.lines))
		}
	})
}

// A turn that comes in the moment when its ADD gives up goes on to the next one.
func TestTurnThatNobodyTakes(t *testing.T) {
	k, key := newKeys(), attachment.Key{Network: "net", ContainerID: "c", Ifname: "eth0"}
	for range 2000 {
		unlock, err := k.lock(t.Context(), key)
		must(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			if unlock, err := k.lock(ctx, key); err == nil {
				unlock()
			}
		}()
		go cancel()
		unlock()
		<-ended
	}
	if len(k.lines) > 0 {
		t.Errorf("%d keys are taken by nobody", len(k.lines))
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

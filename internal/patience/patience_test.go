package patience

import (
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

const limit = time.Second

// A call that hangs keeps its caller waiting for the limit, and other callers not at all. When the
// call ends, Call drops its value, and makes calls again.
func TestCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c Calls
		free := make(chan struct{})
		var dropped []int
		call := func(do func() (int, error)) (int, time.Duration, error) {
			began := time.Now()
			v, err := Call(&c, "x", limit, do, func(v int) { dropped = append(dropped, v) })
			return v, time.Since(began), err
		}
		hangs := func() (int, error) { <-free; return 1, nil }
		two := func() (int, error) { return 2, nil }
		if v, _, err := call(two); v != 2 || err != nil || c.Hang("x") {
			t.Errorf("%d %v", v, err)
		}
		if _, took, err := call(hangs); !errors.Is(err, ErrHangs) || took != limit || !c.Hang("x") {
			t.Errorf("%v after %s", err, took)
		}
		if _, took, err := call(two); !errors.Is(err, ErrHangs) || took != 0 {
			t.Errorf("beside one that hangs: %v after %s", err, took)
		}
		if c.Hang("y") {
			t.Error("another one hangs, too")
		}
		close(free)
		synctest.Wait()
		if len(dropped) != 1 || c.Hang("x") {
			t.Errorf("dropped: %v", dropped)
		}
		if v, _, err := call(two); v != 2 || err != nil {
			t.Errorf("%d %v", v, err)
		}
	})
}

// If a call hangs for ever, others are tried one at a time, after pauses that double. Once
// one of them ends, there are no more pauses.
func TestCallAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c Calls
		never := make(chan struct{})
		defer close(never)
		var begun atomic.Int32
		hangs := func() (int, error) { begun.Add(1); <-never; return 0, nil }
		for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(limit / 10) {
			_, _ = Call(&c, "x", limit, hangs, nil)
		}
		if n := begun.Load(); n < 4 || n > 7 {
			t.Errorf("%d calls in a minute", n)
		}
		time.Sleep(2 * time.Minute)
		for range 2 {
			if v, err := Call(&c, "x", limit, func() (int, error) { return 2, nil }, nil); v != 2 || err != nil {
				t.Errorf("%d %v", v, err)
			}
		}
	})
}

// Calls that hang at the same time do not double the pause several times.
func TestManyAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c Calls
		never := make(chan struct{})
		defer close(never)
		for range 32 {
			go Call(&c, "x", limit, func() (int, error) { <-never; return 0, nil }, nil)
		}
		time.Sleep(limit)
		synctest.Wait()
		time.Sleep(limit)
		if v, err := Call(&c, "x", limit, func() (int, error) { return 2, nil }, nil); v != 2 || err != nil {
			t.Errorf("after the pause: %d %v", v, err)
		}
	})
}

// Any leaves out calls that hung long ago.
func TestAny(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c Calls
		never := make(chan struct{})
		defer close(never)
		hangs := func() (int, error) { <-never; return 0, nil }
		any := func() bool { return c.Any(limit, func(name string) bool { return name == "x" }) }
		_, _ = Call(&c, "x", limit/2, hangs, nil)
		if any() {
			t.Error("a call that was waited for too short a time counts")
		}
		time.Sleep(limit)
		_, _ = Call(&c, "x", limit, hangs, nil)
		if !any() {
			t.Error("a call that hangs does not count")
		}
		time.Sleep(time.Minute)
		if any() {
			t.Error("a call that hung a minute ago counts")
		}
	})
}

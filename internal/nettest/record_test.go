package nettest

import (
	"fmt"
	"runtime"
	"testing"
)

// recorder is a testing.TB that keeps what a helper says about its test.
type recorder struct {
	testing.TB
	failed, skipped bool
	said            string
}

func (r *recorder) Helper() {}

func (r *recorder) Errorf(format string, args ...any) {
	r.failed = true
	r.said += fmt.Sprintf(format, args...)
}

func (r *recorder) Fatalf(format string, args ...any) {
	r.Errorf(format, args...)
	runtime.Goexit()
}

func (r *recorder) Fatal(args ...any) { r.Fatalf("%s", fmt.Sprint(args...)) }

func (r *recorder) Skip(args ...any) {
	r.skipped = true
	r.said += fmt.Sprint(args...)
	runtime.Goexit()
}

// record runs f with a recorder, on a goroutine that it may end.
func record(t *testing.T, f func(testing.TB)) *recorder {
	r := &recorder{TB: t}
	done := make(chan struct{})
	go func() {
		defer close(done)
		f(r)
	}()
	<-done
	return r
}

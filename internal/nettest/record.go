package nettest

import (
	"fmt"
	"runtime"
	"testing"
)

// Recorded says how a test went that Record ran.
type Recorded struct {
	Failed, Skipped bool
	Said            string // texts of Errorf, Fatal and Skip
}

// Record runs f with a test that is not t, so that t can tell whether a test
// helper fails when it should. Clean-ups wait for t's end.
func Record(t testing.TB, f func(testing.TB)) Recorded {
	r := &recorder{TB: t}
	done := make(chan struct{})
	go func() { // Fatal and Skip end this goroutine
		defer close(done)
		f(r)
	}()
	<-done
	return r.went
}

// recorder is a testing.TB that keeps errors and skips, for one goroutine.
type recorder struct {
	testing.TB
	went Recorded
}

func (r *recorder) Helper()       {}
func (r *recorder) Log(...any)    {}
func (r *recorder) Failed() bool  { return r.went.Failed }
func (r *recorder) Skipped() bool { return r.went.Skipped }

func (r *recorder) say(failed bool, text string) {
	r.went.Failed = r.went.Failed || failed
	r.went.Said += text + "\n"
}

func (r *recorder) Error(args ...any)                 { r.say(true, fmt.Sprint(args...)) }
func (r *recorder) Errorf(format string, args ...any) { r.say(true, fmt.Sprintf(format, args...)) }

func (r *recorder) Fatal(args ...any) {
	r.Error(args...)
	runtime.Goexit()
}

func (r *recorder) Fatalf(format string, args ...any) {
	r.Errorf(format, args...)
	runtime.Goexit()
}

func (r *recorder) Skip(args ...any) {
	r.went.Skipped = true
	r.say(false, fmt.Sprint(args...))
	runtime.Goexit()
}

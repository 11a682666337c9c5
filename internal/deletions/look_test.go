package deletions

import (
	"slices"
	"testing"
	"time"

	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/root"
)

// The queue sees each deletion at once, however quickly one follows another.
func TestLookAtOnce(t *testing.T) {
	dir := root.Dir(t.TempDir())
	q := open(t, dir)
	for i := range 200 {
		mustPending(t, q)
		mustWrite(t, dir, numbered(i))
		got := mustPending(t, q)
		if len(got) != 1 || got[0].Record.Container != numbered(i).Container {
			t.Fatalf("after deletion %d pending are %q", i, containers(got))
		}
		must(t, q.Remove(got[0].Name))
	}
}

// The queue does not read a folder again that has not changed for long, until the folder changes.
func TestLookOnce(t *testing.T) {
	dir := root.Dir(t.TempDir())
	q := open(t, dir)
	mustWrite(t, dir, example)
	q.now = func() time.Time { return time.Now().Add(restless - time.Minute) } // the clock was set back
	mustPending(t, q)
	if q.seen.names != nil {
		t.Errorf("remembered although it has just changed: %v", q.seen.names)
	}
	q.now = func() time.Time { return time.Now().Add(restless) }
	mustPending(t, q)
	if want := files(t, dir); !slices.Equal(q.seen.names, want) {
		t.Fatalf("remembered are %v, not %v", q.seen.names, want)
	}
	q.seen.names = nil // if it reads the folder again, it finds one
	if got := mustPending(t, q); len(got) > 0 {
		t.Errorf("read again: %v", got)
	}
	q.now = func() time.Time { return time.Now().Add(restless + time.Hour) } // after a step of the clock, a later change may show the same time
	if got := mustPending(t, q); len(got) != 1 {
		t.Errorf("after the clock was set: %v", got)
	}
	nettest.Eventually(t, "the folder's time has changed", func() bool { // the kernel's clock ticks
		mustWrite(t, dir, numbered(2))
		return len(mustPending(t, q)) >= 2
	})
}

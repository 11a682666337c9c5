package traffic

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berth-net/berth/internal/nettest"
)

// there reports whether a Traffic's root has the mark.
func there(tr *Traffic) bool {
	_, err := os.Lstat(tr.Root.Missed())
	return err == nil
}

// next is the Traffic of an agent that is started after the one of tr was killed.
func next(tr *Traffic) *Traffic {
	next := New(tr.Core, tr.node, tr.ground, tr.index)
	next.Ports = tr.Ports
	return next
}

// wantMissed wants passes that were told so.
func wantMissed(t *testing.T, f *failing, want ...bool) {
	t.Helper()
	if !slices.Equal(f.missed, want) {
		t.Errorf("the passes were told %v, want %v", f.missed, want)
	}
	f.missed = nil
}

// An agent is killed when it has put the table right, and before a pass over connection tracking has
// succeeded. The next agent makes the pass, and the one after that need not.
func TestMissedOutlivesTheAgent(t *testing.T) {
	killed := func(tr *Traffic) {
		tr.Missed()
		if !there(tr) {
			t.Error("there is no mark before the table is right again")
		}
	}
	for name, lives := range map[string]struct {
		first func(*Traffic, context.Context)
		fails int
	}{
		"before its pass":        {func(tr *Traffic, _ context.Context) { killed(tr) }, 0},
		"between its passes":     {func(tr *Traffic, ctx context.Context) { killed(tr); tr.Unwatched(); tr.KeepHidden(ctx) }, 1},
		"before the table is up": {func(tr *Traffic, ctx context.Context) { tr.Unwatched(); killed(tr); tr.KeepHidden(ctx) }, 0},
	} {
		t.Run(name, func(t *testing.T) {
			keep(t, lives.fails, func(*Traffic, context.Context) {}, func(tr *Traffic, f *failing) {
				ctx, cancel := context.WithCancel(context.Background())
				f.during = cancel // the kill
				if lives.first(tr, ctx); !there(tr) {
					t.Fatal("the killed agent leaves no mark")
				}
				f.during, f.missed = nil, nil
				second := next(tr)
				runPass(t, second)
				wantMissed(t, f, true)
				if there(second) {
					t.Error("the mark stays after a pass")
				}
				runPass(t, next(second))
				wantMissed(t, f, false)
			})
		})
	}
}

// runPass runs KeepHidden of an agent that has just started, until there is nothing to do.
func runPass(t *testing.T, tr *Traffic) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	tr.Unwatched()
	ended := make(chan struct{})
	go func() { tr.KeepHidden(ctx); close(ended) }()
	synctest.Wait()
	cancel()
	<-ended
}

// If the rules are missing again while a pass is under way, the mark stays for the next pass.
func TestMissedDuringPass(t *testing.T) {
	keep(t, 0, (*Traffic).KeepHidden, func(tr *Traffic, f *failing) {
		f.during = tr.Missed
		tr.Exposed()
		synctest.Wait()
		if !there(tr) {
			t.Error("the mark is gone")
		}
		f.during = nil
		tr.Unwatched()
		synctest.Wait()
		wantMissed(t, f, true, true)
		if there(tr) {
			t.Error("the mark stays")
		}

		f.during = func() { // the rules are missing, and back at once
			f.during = func() {
				if !there(tr) {
					t.Error("the mark is gone before the pass for the second time")
				}
			}
			tr.Exposed()
		}
		tr.Exposed()
		synctest.Wait()
		wantMissed(t, f, true, true)
	})
}

// A pass that begins before the table is in force again does not do: connections may begin after it.
func TestMissedUntilInForce(t *testing.T) {
	keep(t, 0, func(*Traffic, context.Context) {}, func(tr *Traffic, f *failing) {
		tr.Unwatched() // of something earlier
		tr.Missed()
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		go tr.KeepHidden(ctx)
		synctest.Wait()
		if !there(tr) {
			t.Error("the mark is gone before the table is there")
		}
		tr.Unwatched()
		synctest.Wait()
		wantMissed(t, f, true, true)
		if there(tr) {
			t.Error("the mark stays")
		}
	})
}

// Without a run folder all goes on as before, and the log says so once.
func TestMissedWithoutRunFolder(t *testing.T) {
	keep(t, 0, (*Traffic).KeepHidden, func(tr *Traffic, f *failing) {
		nettest.Must(t, os.Remove(tr.Root.Run()))
		nettest.Must(t, os.WriteFile(tr.Root.Run(), nil, 0o600)) // no folder
		var log bytes.Buffer
		tr.Log = slog.New(slog.NewTextHandler(&log, nil))
		for range 3 {
			tr.Missed()
		}
		if n := bytes.Count(log.Bytes(), []byte("\n")); n != 1 {
			t.Errorf("the log has %d lines:\n%s", n, &log)
		}
		tr.Unwatched()
		time.Sleep(time.Minute) // not real
		synctest.Wait()
		wantMissed(t, f, true)
		runPass(t, next(tr))
		wantMissed(t, f, false)
	})
}

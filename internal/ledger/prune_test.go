package ledger

import (
	"fmt"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/berth-net/berth/internal/boottime"
	"github.com/berth-net/berth/internal/nettest"
)

// The ledger keeps a limited number of rests that are over, and drops the oldest first. It
// keeps all rests that are not over.
func TestPruneRests(t *testing.T) {
	c := newClock()
	opts := testOptions(filepath.Join(t.TempDir(), "ledger.db"), c)
	l := open(t, opts)
	const each = 512
	rested := func(owner int, freed time.Time) {
		o := newOwner()
		for i := range each {
			o.Names = append(o.Names, address(fmt.Sprintf("%d/%d", owner, i)))
		}
		mustCommit(t, l, Begin(o), Forget(o.ID, freed))
	}
	const due, undue = maxDue/each + 4, 3
	for owner := range due {
		rested(owner, c.now.Add(-time.Hour+time.Duration(owner)*time.Second))
	}
	for owner := range undue {
		rested(due+owner, c.now)
	}
	check := func(l *Ledger) {
		t.Helper()
		pruneNow(t, l)
		rests := l.Resting()
		if n := len(rests) - undue*each; n != maxDue {
			t.Fatalf("%d rests that are due are kept, want %d", n, maxDue)
		}
		if newest := rests[len(rests)-1]; !newest.Freed.Equal(c.now) {
			t.Errorf("the newest was freed at %v, want %v", newest.Freed, c.now)
		}
		if oldest := rests[0].Freed; !oldest.After(c.now.Add(-time.Hour)) {
			t.Errorf("the oldest was freed at %v", oldest)
		}
		for i := range undue * each {
			if r := rests[len(rests)-1-i]; !r.Until.After(c.now) {
				t.Fatalf("a rest that is not due has gone: %+v stands in its place", r)
			}
		}
	}
	check(l)
	l.Close()
	check(open(t, opts))
}

// pruneNow has the ledger prune, as it does now and then.
func pruneNow(t *testing.T, l *Ledger) {
	t.Helper()
	mustCommit(t, l, inWriter(func(l *Ledger) error { l.prune(); return nil }))
}

// A name whose rest was pruned can be claimed, and the ledger can be read after that.
func TestPrunedAndClaimed(t *testing.T) {
	c := newClock()
	opts := testOptions(filepath.Join(t.TempDir(), "ledger.db"), c)
	l := open(t, opts)
	o, later := newOwner(), newOwner()
	for i := range maxDue + 8 {
		o.Names = append(o.Names, address(fmt.Sprintf("%04d", i)))
	}
	mustCommit(t, l, Begin(o), Forget(o.ID, c.now))
	c.now = c.now.Add(rest)
	pruneNow(t, l)
	if n := len(l.Resting()); n != maxDue {
		t.Fatalf("%d rests, want %d", n, maxDue)
	}
	later.Names = o.Names[:9] // 8 were pruned
	mustCommit(t, l, Begin(later))
	want := contentOf(l)
	l.Close()
	l = open(t, opts)
	sameContent(t, contentOf(l), want)
	if snap, err := Read(copyOf(t, l), testKinds); err != nil || len(snap.Resting) != maxDue-1 {
		t.Errorf("the file: %d rests, %v", len(snap.Resting), err)
	}
	mustCommit(t, l, Forget(later.ID, c.now))
	rewriteNow(t, l)
	want = contentOf(l)
	l.Close()
	sameContent(t, contentOf(open(t, opts)), want)
}

// The ledger drops expired tombstones when there are many, and those of other boots with a
// new epoch. It does not show expired ones.
func TestPruneTombstones(t *testing.T) {
	c := newClock()
	opts := testOptions(filepath.Join(t.TempDir(), "ledger.db"), c)
	l := open(t, opts)
	must(t, l.SetEpoch(Epoch{Boot: "one"}))
	bury := func(key, boot string, until time.Duration) {
		mustCommit(t, l, Bury(Tombstone{key, boot, 1, c.Boottime() + int64(until)}))
	}
	bury("other", "another text", time.Minute)
	bury("short", "one", time.Second)
	bury("long", "one", time.Hour)
	for _, key := range []string{"other", "short", "long"} {
		if _, ok := l.Tombstone(key); !ok {
			t.Errorf("%s is not there", key)
		}
	}
	c.now = c.now.Add(2 * time.Minute)
	if _, ok := l.Tombstone("short"); ok {
		t.Error("expired, and still shown")
	}
	var ops []Op
	for i := range maxTombs {
		ops = append(ops, Bury(Tombstone{fmt.Sprint(i), "one", 1, c.Boottime() + int64(time.Hour)}))
	}
	mustCommit(t, l, ops...)
	pruneNow(t, l)
	if n := l.Stats().Tombstones; n != maxTombs+1 {
		t.Errorf("%d tombstones, want %d and the long one", n, maxTombs)
	}
	must(t, l.SetEpoch(Epoch{Boot: "two"}))
	if n := l.Stats().Tombstones; n != 0 {
		t.Errorf("%d tombstones of another boot", n)
	}
	l.Close()
	if n := open(t, opts).Stats().Tombstones; n != 0 {
		t.Errorf("%d tombstones after reopening", n)
	}
}

// Once the rests of a burst are over, the ledger drops most of them, although nothing is
// committed any more. These rests leave the file when it is written anew.
func TestPruneAfterBurst(t *testing.T) {
	c := newClock()
	opts := testOptions(filepath.Join(t.TempDir(), "ledger.db"), c)
	opts.pruneEvery = time.Millisecond
	var passed atomic.Int64
	opts.Clock = boottime.NewClock(func() time.Time { return c.now.Add(time.Duration(passed.Load())) }, func() int64 { return c.Boottime() + passed.Load() })
	const burst = 4 * maxDue
	var ops []Op
	for i := range burst {
		o := newOwner(address(fmt.Sprint(i)))
		ops = append(ops, Begin(o), Forget(o.ID, c.now), Bury(Tombstone{fmt.Sprint(i), c.boot, 1, c.Boottime() + int64(time.Second)}))
	}
	l := open(t, opts)
	mustCommit(t, l, ops...)
	if s := l.Stats(); s.Resting != burst || s.Tombstones != burst {
		t.Fatalf("%d rests and %d tombstones, want %d", s.Resting, s.Tombstones, burst)
	}
	passed.Store(int64(rest))
	nettest.Eventually(t, "the rests and tombstones are gone", func() bool {
		s := l.Stats()
		return s.Resting == maxDue && s.Tombstones == 0
	})
	rewriteNow(t, l)
	if snap, err := Read(copyOf(t, l), testKinds); err != nil || len(snap.Resting) != maxDue || len(snap.Tombstones) != 0 {
		t.Errorf("the file has %d rests and %d tombstones, %v", len(snap.Resting), len(snap.Tombstones), err)
	}
}

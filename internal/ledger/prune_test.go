package ledger

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"
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
		rests := l.Resting()
		// The ledger keeps a little more than the limit, so that it seldom has to prune.
		if n := len(rests) - undue*each; n < maxDue || n > maxDue+pruneLag {
			t.Fatalf("%d rests that are due are kept, want %d to %d", n, maxDue, maxDue+pruneLag)
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
	for i := range pruneLag {
		ops = append(ops, Bury(Tombstone{fmt.Sprint(i), "one", 1, c.Boottime() + int64(time.Hour)}))
	}
	mustCommit(t, l, ops...)
	if n := l.Stats().Tombstones; n != pruneLag+1 {
		t.Errorf("%d tombstones, want %d and the long one", n, pruneLag)
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

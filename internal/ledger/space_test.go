package ledger

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/nettest"
)

// disk is a small file system for a test.
type disk struct {
	t   *testing.T
	dir string
}

// newDisk mounts a tmpfs of so many bytes.
func newDisk(t *testing.T, bytes string) *disk {
	nettest.Need(t)
	d := &disk{t, t.TempDir()}
	must(t, unix.Mount("tmpfs", d.dir, "tmpfs", 0, "size="+bytes))
	t.Cleanup(func() {
		if err := unix.Unmount(d.dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return d
}

func (d *disk) ledger() string { return filepath.Join(d.dir, "ledger.db") }

// fill uses up the rest of the disk.
func (d *disk) fill() {
	d.t.Helper()
	f, err := os.OpenFile(filepath.Join(d.dir, "filler"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	must(d.t, err)
	defer f.Close()
	for page := make([]byte, 1<<16); ; {
		if _, err = f.Write(page); err != nil {
			break
		}
	}
	if !errors.Is(err, unix.ENOSPC) {
		d.t.Fatal(err)
	}
}

// mustBeFull fails the test if the disk still has room.
func (d *disk) mustBeFull() {
	d.t.Helper()
	var s unix.Statfs_t
	must(d.t, unix.Statfs(d.dir, &s))
	if s.Bavail != 0 {
		d.t.Fatalf("the disk has %d free blocks", s.Bavail)
	}
}

func (d *disk) free() {
	d.t.Helper()
	must(d.t, os.Remove(filepath.Join(d.dir, "filler")))
}

// beginUntilFull begins owners until they are refused.
func beginUntilFull(t *testing.T, l *Ledger, from int) {
	t.Helper()
	for i := range 20000 {
		err := l.Commit(t.Context(), Begin(fullOwner(from+i)))
		if errors.Is(err, ErrFull) {
			if !strings.HasPrefix(errors.Unwrap(err).Error(), "disk full: ") || !errors.Is(err, unix.ENOSPC) {
				t.Errorf("the error does not explain itself: %v", err)
			}
			t.Logf("%d more owners, then: %v", i, err)
			return
		}
		must(t, err)
	}
	t.Fatal("owners are still begun on a full disk")
}

// A full disk stops ADD first and DEL last, and both work again when there is room again.
func TestFullDisk(t *testing.T) {
	for _, group := range []int{1, 250} {
		d := newDisk(t, "48m")
		c := newClock()
		opts := testOptions(d.ledger(), c)
		l := open(t, opts)
		const owners = 3000
		for i := 0; i < owners; i += 250 {
			var ops []Op
			for j := range 250 {
				ops = append(ops, Begin(fullOwner(i+j)))
			}
			mustCommit(t, l, ops...)
		}
		d.fill()
		beginUntilFull(t, l, owners)
		all := l.Owners()
		first := all[0].ID
		if err := l.Writable(); !errors.Is(err, ErrFull) {
			t.Errorf("writable: %v", err)
		}
		if s := l.Stats(); s.FreePages < s.Reserve/2 {
			t.Errorf("hardly any reserve: %+v", s)
		}
		if err := l.Commit(t.Context(), Update(first, func(o *hold.Owner) error {
			o.Holds = append(slices.Clone(o.Holds), o.Holds...)
			return nil
		})); !errors.Is(err, ErrFull) {
			t.Errorf("an update that adds: %v", err)
		}
		mustCommit(t, l, Update(first, func(o *hold.Owner) error { o.Names = o.Names[:1]; return nil }))
		if err := l.SetEpoch(Epoch{Boot: "b"}); err != nil {
			t.Errorf("setting the epoch: %v", err)
		}

		var releases, forgets []Op
		for _, o := range all {
			releases = append(releases, Releasing(o.ID, c.now), Bury(Tombstone{string(o.ID), "b", 1, c.Boottime() + int64(time.Hour)}))
			forgets = append(forgets, Forget(o.ID, c.now))
		}
		for ops := range slices.Chunk(append(releases, forgets...), group) {
			if err := l.Commit(t.Context(), ops...); err != nil {
				t.Fatalf("a deletion: %v (%+v)", err, l.Stats())
			}
		}
		d.mustBeFull()
		want := contentOf(l)
		if len(want.Owners) != 0 || len(want.Rests) < 2*owners || len(want.Tombs) < owners {
			t.Fatalf("%d owners, %d rests, %d tombstones", len(want.Owners), len(want.Rests), len(want.Tombs))
		}
		must(t, l.Close())
		l = open(t, opts)
		sameContent(t, contentOf(l), want)
		d.mustBeFull()

		d.free()
		mustCommit(t, l, Begin(newOwner()))
		if err := l.Writable(); err != nil {
			t.Errorf("writable again: %v", err)
		}
		l.Close()
	}
}

// TestFullDiskLarge is TestFullDisk with the largest owners, each of which needs many pages
// in one piece.
func TestFullDiskLarge(t *testing.T) {
	d := newDisk(t, "64m")
	c := newClock()
	l := open(t, testOptions(d.ledger(), c))
	large := func() Op {
		o := newOwner(address(string(hold.NewID())))
		o.Meta = json.RawMessage(`"` + strings.Repeat("m", MaxOwner-1024) + `"`)
		return Begin(o)
	}
	for range 40 {
		mustCommit(t, l, large(), Begin(newOwner()))
	}
	d.fill()
	for err := error(nil); !errors.Is(err, ErrFull); err = l.Commit(t.Context(), large()) {
		must(t, err)
	}
	for _, o := range l.Owners() {
		mustCommit(t, l, Releasing(o.ID, c.now))
		mustCommit(t, l, Forget(o.ID, c.now))
	}
	d.mustBeFull()
	d.free()
	mustCommit(t, l, large())
}

// If a page cannot be written, because somebody has made a hole there, only the commits of
// that transaction fail.
func TestFullDiskHole(t *testing.T) {
	d := newDisk(t, "16m")
	c := newClock()
	l := open(t, testOptions(d.ledger(), c))
	a := newOwner(address("1"))
	mustCommit(t, l, Begin(a))
	before := contentOf(l)
	size := int64(l.store.room.file) * pageSize
	used := int64(l.store.room.high) * pageSize
	if err := unix.Fallocate(int(l.store.file.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, used, size-used); err != nil {
		t.Fatal(err)
	}
	d.fill()
	var err error
	for range 100 { // until the free pages before the hole are used up
		o := newOwner()
		o.Meta = json.RawMessage(`"` + strings.Repeat("m", 3*pageSize) + `"`)
		if err = l.Commit(t.Context(), Begin(o)); err != nil {
			break
		}
		before = contentOf(l)
	}
	if !errors.Is(err, ErrFull) || errors.Is(err, ErrFailed) {
		t.Fatalf("a commit into the hole: %v", err)
	}
	if l.Stats().Failed == 0 {
		t.Fatal("the hole was not reached")
	}
	sameContent(t, contentOf(l), before)
	d.free()
	mustCommit(t, l, Begin(newOwner()), Forget(a.ID, c.now))
	want := contentOf(l)
	l.Close()
	sameContent(t, contentOf(open(t, testOptions(d.ledger(), c))), want)
}

// On a full disk no ledger is made, and none is left half-made.
func TestFullAtCreation(t *testing.T) {
	d := newDisk(t, "2m")
	opts := testOptions(d.ledger(), newClock())
	for range 2 {
		if _, err := Open(opts); !errors.Is(err, ErrFull) {
			t.Fatalf("Open says %v", err)
		}
	}
	if info, err := os.Stat(d.ledger()); err != nil || info.Size() > 0 {
		t.Errorf("left behind: %v, %v", info, err)
	}
	must(t, unix.Mount("tmpfs", d.dir, "tmpfs", unix.MS_REMOUNT, "size=32m"))
	mustCommit(t, open(t, opts), Begin(newOwner()))
}

// short counts missing free pages, a missing piece at the end, or both.
func TestShort(t *testing.T) {
	const enough = baseReserve + 10
	for _, test := range []struct{ free, tail, owners, pages, want int }{
		{enough, minTail, 0, 1, 0},
		{baseReserve - minTail, minTail, 0, 0, 0},
		{baseReserve - minTail, minTail, 0, 3, 3},
		{baseReserve - minTail, minTail, 8 * ownersPerPage, 3, 11},
		{enough, minTail - 5, 0, 3, 5},
		{0, 0, 0, 3, baseReserve + 3},
		{enough, 0, 0, 3, minTail},
	} {
		r := room{file: 100 + test.tail + 1, high: 100, free: test.free}
		short := r.short(test.owners, test.pages)
		if max(0, short) != test.want {
			t.Errorf("%+v: short of %d", test, short)
		}
		r.file += max(0, short)
		if r.short(test.owners, test.pages) > 0 {
			t.Errorf("%+v: still short after growing", test)
		}
	}
}

// Where a file system cannot allocate, allocate writes zeros, and only behind the file's
// end.
func TestAllocateByWriting(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "file"))
	must(t, err)
	defer f.Close()
	if _, err := f.WriteString("kept"); err != nil {
		t.Fatal(err)
	}
	must(t, zero(f, 200_000))
	must(t, zero(f, 100_000))
	raw, err := os.ReadFile(f.Name())
	if err != nil || len(raw) != 200_000 || string(raw[:5]) != "kept\x00" {
		t.Errorf("%d bytes, %.10q, %v", len(raw), raw, err)
	}
}

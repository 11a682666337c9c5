package deletions

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/root"
)

func TestQueue(t *testing.T) {
	dir := root.Dir(t.TempDir())
	q := open(t, dir)
	if got := mustPending(t, q); len(got) != 0 {
		t.Fatalf("a new queue has %v", got)
	}
	if n, err := q.Waiting(); err != nil || n != 0 {
		t.Errorf("in a new queue %d wait, %v", n, err)
	}
	began := time.Now().Add(-time.Minute)
	mustWrite(t, dir, example, numbered(2), example) // the same deletion again
	entries := mustPending(t, q)
	if got := containers(entries); got != "c2 c1 c1" {
		t.Errorf("pending are %s", got)
	}
	for _, e := range entries[1:] {
		if !reflect.DeepEqual(e.Record, example) || e.Written.Before(began) || e.Written.After(time.Now().Add(time.Minute)) {
			t.Errorf("%+v", e)
		}
	}
	if n, err := q.Waiting(); err != nil || n != 3 {
		t.Errorf("%d wait, %v", n, err)
	}
	of, err := q.PendingOf("net", "c1", "eth0")
	if err != nil || !reflect.DeepEqual(of, entries[1:]) {
		t.Errorf("of c1 pending are %v, %v", of, err)
	}
	if of, err := q.PendingOf("net", "c1", "eth1"); err != nil || len(of) != 0 {
		t.Errorf("of another interface pending are %v, %v", of, err)
	}
	for range 2 { // the second time there is nothing left to remove
		if err := q.Remove(entries[1].Name); err != nil {
			t.Error(err)
		}
	}
	if got := containers(mustPending(t, q)); got != "c2 c1" {
		t.Errorf("pending are %s", got)
	}
	if err := q.Remove(entries[0].Name, entries[2].Name); err != nil {
		t.Error(err)
	}
	if got := files(t, dir); len(got) != 0 {
		t.Errorf("left in the folder: %v", got)
	}
}

// Remove removes nothing but deletions.
func TestRemoveRefuses(t *testing.T) {
	dir := root.Dir(t.TempDir())
	q := open(t, dir)
	if _, err := q.Refill(Spares); err != nil {
		t.Fatal(err)
	}
	must(t, os.WriteFile(dir.Ledger(), nil, 0o600))
	for _, name := range []string{spareName(0), "../ledger.db", "", ".", "/etc/hostname"} {
		if err := q.Remove(name); err == nil {
			t.Errorf("%q: no error", name)
		}
	}
	for _, file := range []string{dir.Ledger(), filepath.Join(Path(dir), spareName(0))} {
		if _, err := os.Stat(file); err != nil {
			t.Error(err)
		}
	}
}

// Deletions come in the order in which they began, those of an earlier boot first, whatever
// the clock showed then.
func TestOrder(t *testing.T) {
	at := func(boot string, started int64, written int) Entry {
		return Entry{Name: boot + string(rune('a'+started)), Record: Record{Boot: boot, Started: started}, Written: time.Unix(int64(written), 0)}
	}
	want := []Entry{
		at("z", 5, 100), at("z", 6, 90), at("z", 7, 200), // the boot began before 90
		at("a", 1, 150), at("a", 2, 160),
		at("m", 3, 170),
	}
	for range 20 {
		got := slices.Clone(want)
		for i := range got { // another order each time
			j := int(time.Now().UnixNano()) % (i + 1)
			got[i], got[j] = got[j], got[i]
		}
		sortEntries(got)
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("%v", got)
		}
	}
}

// Whatever is missing below a root that is there, the queue makes its folder, into which
// nobody else can look.
func TestMakesFolder(t *testing.T) {
	old := unix.Umask(0)
	defer unix.Umask(old)
	for _, there := range []string{"", "var", "var/lib", "var/lib/berth", "var/lib/berth/deletions"} {
		dir := root.Dir(t.TempDir())
		must(t, os.MkdirAll(filepath.Join(string(dir), there), 0o755))
		mustWrite(t, dir, example)
		if got := containers(mustPending(t, open(t, dir))); got != "c1" {
			t.Errorf("with %q there, pending are %q", there, got)
		}
		for path := Path(dir); path != filepath.Join(string(dir), there) && path != "/"; path = filepath.Dir(path) {
			if info, err := os.Stat(path); err != nil || info.Mode() != os.ModeDir|0o700 {
				t.Errorf("with %q there: %s is %v, %v", there, path, info.Mode(), err)
			}
		}
		name := filepath.Join(Path(dir), files(t, dir)[0])
		if info, err := os.Stat(name); err != nil || info.Mode() != 0o600 {
			t.Errorf("%s is %v, %v", name, info.Mode(), err)
		}
	}
}

// An administrator may have moved the state elsewhere by a symbolic link, but the queue's
// folder itself must be no link (CVE-2025-0750, CVE-2026-53489: links led out of a folder).
func TestLinks(t *testing.T) {
	dir, elsewhere := root.Dir(t.TempDir()), t.TempDir()
	must(t, os.Symlink(elsewhere, filepath.Join(string(dir), "var")))
	mustWrite(t, dir, example)
	if got := containers(mustPending(t, open(t, dir))); got != "c1" {
		t.Errorf("pending are %q", got)
	}

	dir = root.Dir(t.TempDir())
	must(t, os.MkdirAll(dir.State(), 0o700))
	target := t.TempDir()
	must(t, os.Symlink(target, Path(dir)))
	if err := Write(dir, example); !errors.Is(err, unix.ELOOP) && !errors.Is(err, unix.ENOTDIR) {
		t.Errorf("writing through a link: %v", err)
	}
	if _, err := Open(dir); err == nil {
		t.Error("a link to a folder is opened")
	}
	if left, err := os.ReadDir(target); err != nil || len(left) > 0 {
		t.Errorf("behind the link is %v, %v", left, err)
	}
}

func TestNoRoot(t *testing.T) {
	missing := root.Dir(filepath.Join(t.TempDir(), "mistyped"))
	if err := Write(missing, example); !errors.Is(err, unix.ENOENT) {
		t.Errorf("%v", err)
	}
	if _, err := Open(missing); !errors.Is(err, unix.ENOENT) {
		t.Errorf("%v", err)
	}
	if _, err := os.Stat(string(missing)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the root was made: %v", err)
	}
	file := filepath.Join(t.TempDir(), "file")
	must(t, os.WriteFile(file, nil, 0o600))
	if err := Write(root.Dir(file), example); !errors.Is(err, unix.ENOTDIR) {
		t.Errorf("%v", err)
	}
}

// Many plugins write at once, and an agent removes what it sees. The agent sees each deletion
// at least once, and none half.
func TestConcurrent(t *testing.T) {
	dir := root.Dir(t.TempDir())
	q := open(t, dir)
	const writers, each = 8, 20
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for i := range each {
				if err := Write(dir, numbered(w*each+i)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	written := make(chan struct{})
	go func() { wg.Wait(); close(written) }()
	seen := make(map[string]int)
	for last := false; ; {
		select {
		case <-written:
			last = true
		default:
		}
		for _, e := range mustPending(t, q) {
			seen[e.Record.Container]++
			if err := q.Remove(e.Name); err != nil {
				t.Error(err)
			}
		}
		if last {
			break
		}
	}
	if len(seen) != writers*each {
		t.Errorf("%d of %d were seen", len(seen), writers*each)
	}
	for c, n := range seen {
		if n != 1 {
			t.Errorf("%s was seen %d times", c, n)
		}
	}
	if d, err := q.Damaged(); err != nil || len(d) > 0 {
		t.Errorf("damaged: %v, %v", d, err)
	}
}

// Somebody removes the folder: a writer that has it open writes into the next one.
func TestFolderRemoved(t *testing.T) {
	dir := root.Dir(t.TempDir())
	q := open(t, dir)
	for range 3 {
		must(t, os.RemoveAll(Path(dir)))
		if got := mustPending(t, q); len(got) > 0 {
			t.Errorf("a new folder has %v", got)
		}
		must(t, os.RemoveAll(dir.State()))
		mustWrite(t, dir, example)
		if got := containers(mustPending(t, q)); got != "c1" {
			t.Errorf("pending are %q", got)
		}
	}
}

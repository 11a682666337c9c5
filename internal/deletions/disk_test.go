package deletions

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/root"
)

// mount mounts a tmpfs, and returns where.
func mount(t *testing.T, options string) string {
	t.Helper()
	dir := t.TempDir()
	nettest.Mount(t, dir, options)
	return dir
}

func mountExt4(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	nettest.MountExt4(t, dir)
	return dir
}

// remount changes the flags of a mount.
func remount(t *testing.T, dir string, flags uintptr) {
	t.Helper()
	must(t, unix.Mount("", dir, "", unix.MS_REMOUNT|flags, ""))
}

// fillInodes takes all inodes that are left on a disk.
func fillInodes(t testing.TB, dir string) {
	t.Helper()
	filler := filepath.Join(dir, "filler")
	err := os.Mkdir(filler, 0o700)
	for i := 0; err == nil; i++ {
		err = os.WriteFile(filepath.Join(filler, strconv.Itoa(i)), nil, 0o600)
	}
	if !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
}

// On a disk that is really full, as many deletions find room as there are spare files, and
// none of them is lost.
func TestFullDisk(t *testing.T) {
	nettest.Need(t) // for the mount
	tmpfs := func(options string) func(*testing.T) string {
		return func(t *testing.T) string { return mount(t, options) }
	}
	for name, disk := range map[string]struct {
		mount func(*testing.T) string
		fill  func(testing.TB, string)
	}{
		"tmpfs blocks": {tmpfs("size=4m"), nettest.Fill},
		"tmpfs inodes": {tmpfs("nr_inodes=5k"), fillInodes},
		"ext4 blocks":  {mountExt4, nettest.Fill},
		"ext4 inodes":  {mountExt4, fillInodes},
	} {
		t.Run(name, func(t *testing.T) {
			dir := root.Dir(disk.mount(t))
			q := open(t, dir)
			if n, err := q.Refill(Spares); n != Spares || err != nil {
				t.Fatalf("%d spare files, %v", n, err)
			}
			disk.fill(t, string(dir))
			if err := makeAnyFile(string(dir)); !errors.Is(err, unix.ENOSPC) {
				t.Fatalf("the disk is not full: %v", err)
			}

			// Several at once, each with a deletion of its own.
			var wg sync.WaitGroup
			for w := range 4 {
				wg.Go(func() {
					for i := range Spares / 4 {
						if err := Write(dir, numbered(w*Spares/4+i)); err != nil {
							t.Errorf("deletion %d on a full disk: %v", i, err)
						}
					}
				})
			}
			wg.Wait()
			entries := mustPending(t, q)
			if len(entries) != Spares {
				t.Errorf("%d of %d deletions are pending", len(entries), Spares)
			}
			seen := make(map[string]bool)
			for _, e := range entries {
				seen[e.Record.Container] = true
			}
			if len(seen) != Spares {
				t.Errorf("they are %d different ones", len(seen))
			}

			err := Write(dir, example)
			if !errors.Is(err, unix.ENOSPC) || !errors.Is(err, errNoSpare) {
				t.Errorf("a deletion too many: %v", err)
			}
			if n, err := q.Refill(Spares); n != 0 || !errors.Is(err, unix.ENOSPC) {
				t.Errorf("%d spare files on a full disk, %v", n, err)
			}
			if got := files(t, dir); len(got) != Spares {
				t.Errorf("%d files are left", len(got))
			}

			// The agent does some deletions, and keeps their room.
			for _, e := range entries[:10] {
				must(t, q.Remove(e.Name))
			}
			if n, err := q.Refill(Spares); n < 1 || n > 10 || err == nil {
				t.Errorf("%d spare files in the room of 10 deletions, %v", n, err)
			}
			must(t, os.RemoveAll(filepath.Join(string(dir), "filler")))
			if n, err := q.Refill(Spares); n != Spares || err != nil {
				t.Errorf("%d spare files, %v", n, err)
			}
		})
	}
}

// On a node of many pods there are more spare files than the quick ones and the reserved ones
// together, and each serves a deletion on a full disk. Refill makes Spares of them at a time, and
// removes none.
func TestManyOnFullDisk(t *testing.T) {
	nettest.Need(t) // for the mount
	const many = 2*Spares + 200
	for name, mount := range map[string]func(*testing.T) string{"tmpfs": tmpfs, "ext4": mountExt4} {
		t.Run(name, func(t *testing.T) {
			dir := root.Dir(mount(t))
			q := open(t, dir)
			for _, want := range []int{Spares, 2 * Spares, many, many} {
				if n, err := q.Refill(many); n != want || err != nil {
					t.Fatalf("%d spare files, %v, want %d", n, err, want)
				}
			}
			if n, err := q.Refill(Spares); n != many || err != nil {
				t.Fatalf("%d spare files, %v, want all %d", n, err, many)
			}
			nettest.Fill(t, string(dir))
			for i := range many {
				if err := Write(dir, numbered(i)); err != nil {
					t.Fatalf("deletion %d of %d: %v", i, many, err)
				}
			}
			if err := Write(dir, numbered(many)); !errors.Is(err, errNoSpare) {
				t.Errorf("a deletion too many: %v", err)
			}
			if n := len(mustPending(t, q)); n != many {
				t.Errorf("%d deletions wait, not %d", n, many)
			}
			if s, err := Look(dir); err != nil || s.Spares != 0 {
				t.Errorf("%d spare files are left, %v", s.Spares, err)
			}
		})
	}
}

// A spare file's name has its number, however large. Other names that look like it have none.
func TestSpareNumber(t *testing.T) {
	for _, i := range []int{0, 7, Spares, 1000, 123456} {
		if got, ok := spareNumber(spareName(i)); got != i || !ok {
			t.Errorf("%s: %d, %v", spareName(i), got, ok)
		}
	}
	for _, name := range []string{"spare-", "spare-1" + spareName(1)[len("spare-001"):], spareName(1) + "x", "spare-+01-keeps-room-for-a-deletion-on-a-full-disk", newName(t, example)} {
		if i, ok := spareNumber(name); ok {
			t.Errorf("%s: %d", name, i)
		}
	}
}

// makeAnyFile makes a file of one block, and removes it.
func makeAnyFile(dir string) error {
	name := filepath.Join(dir, "any")
	defer os.Remove(name)
	return os.WriteFile(name, make([]byte, 4096), 0o600)
}

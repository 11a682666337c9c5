package ledger

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/nettest"
)

// Open makes a ledger where there is none, or where a crash has left a half-made one.
func TestCreate(t *testing.T) {
	tests := map[string]func(path string) error{
		"nothing there": func(string) error { return nil },
		"an empty file": func(path string) error { return os.WriteFile(path, nil, 0o600) },
		"one begun":     func(path string) error { return os.WriteFile(asidePath(path, 1), nil, 0o600) },
		"half of one":   func(path string) error { return os.WriteFile(asidePath(path, 1), make([]byte, 100), 0o600) },
		"a whole one": func(path string) error {
			return os.WriteFile(asidePath(path, 1<<60), fileHead{id: 1 << 60}.sector(), 0o600)
		},
		"all": func(path string) error {
			return errors.Join(os.WriteFile(path, nil, 0o600), os.WriteFile(asidePath(path, 1), make([]byte, 1<<20), 0o600),
				os.WriteFile(asidePath(path, 2), nil, 0o600))
		},
	}
	for name, prepare := range tests {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "ledger.db")
			must(t, prepare(path))
			opts := testOptions(path, newClock())
			l := open(t, opts)
			mustCommit(t, l, Begin(newOwner()))
			l.Close()
			if n := len(open(t, opts).Owners()); n != 1 {
				t.Errorf("%d owners", n)
			}
			entries, err := os.ReadDir(filepath.Dir(path))
			if err != nil || len(entries) != 1 {
				t.Errorf("left behind: %v, %v", entries, err)
			}
			if info, err := os.Stat(path); err != nil || info.Mode() != 0o600 {
				t.Errorf("mode %v, %v", info.Mode(), err)
			}
		})
	}
}

// A ledger behind a symbolic link stays behind the link when the ledger's file is written anew.
func TestSymlink(t *testing.T) {
	dir, elsewhere := t.TempDir(), t.TempDir()
	path := filepath.Join(dir, "ledger.db")
	must(t, os.Symlink(filepath.Join(elsewhere, "it"), path))
	l := open(t, testOptions(path, newClock()))
	mustCommit(t, l, Begin(newOwner()))
	rewriteNow(t, l)
	mustCommit(t, l, Begin(newOwner()))
	l.Close()
	if info, err := os.Lstat(path); err != nil || info.Mode()&fs.ModeSymlink == 0 {
		t.Errorf("the link has become %v, %v", info.Mode(), err)
	}
	if snap, err := Read(path, testKinds); err != nil || len(snap.Owners) != 2 {
		t.Errorf("Read: %+v, %v", snap, err)
	}
}

// The same holds if a link leads to another link.
func TestSymlinks(t *testing.T) {
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	must(t, errors.Join(os.Mkdir(in("a"), 0o700), os.Mkdir(in("b"), 0o700),
		os.Symlink("a/second", in("first")), os.Symlink("../folder/it", in("a/second")), os.Symlink("b", in("folder")), os.Symlink("loop", in("loop"))))
	l := open(t, testOptions(in("first"), newClock()))
	mustCommit(t, l, Begin(newOwner()))
	rewriteNow(t, l)
	must(t, l.InPlace())
	l.Close()
	if _, err := Replace(testOptions(in("first"), newClock()), []Op{Begin(newOwner()), Begin(newOwner())}); err != nil {
		t.Error(err)
	}
	for _, link := range []string{"first", "a/second", "folder"} {
		if info, err := os.Lstat(in(link)); err != nil || info.Mode()&fs.ModeSymlink == 0 {
			t.Errorf("%s has become %v, %v", link, info.Mode(), err)
		}
	}
	if snap, err := Read(in("b/it"), testKinds); err != nil || len(snap.Owners) != 2 {
		t.Errorf("Read: %+v, %v", snap, err)
	}
	if _, err := Open(testOptions(in("loop"), newClock())); !errors.Is(err, unix.ELOOP) {
		t.Errorf("a link to itself: %v", err)
	}
}

// The ledger knows whether its path leads to the file that it writes, also while the file is
// written anew.
func TestInPlace(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger.db")
	l := open(t, testOptions(path, newClock()))
	must(t, l.InPlace())
	done := make(chan bool)
	var asking sync.WaitGroup
	for range 2 {
		asking.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				if err := l.InPlace(); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for range 30 {
		mustCommit(t, l, Begin(newOwner()))
		rewriteNow(t, l)
	}
	close(done)
	asking.Wait()
	must(t, os.Rename(path, path+".aside"))
	if err := l.InPlace(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("gone: %v", err)
	}
	writeAll(t, path, []byte("another"))
	if err := l.InPlace(); err == nil || !strings.Contains(err.Error(), "another file") {
		t.Errorf("another one: %v", err)
	}
	must(t, os.Rename(path+".aside", path))
	must(t, l.InPlace())
}

// If somebody puts another file in the place of the new file that is to become the ledger, the
// other file does not become the ledger.
func TestAnotherNew(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger.db")
	opts := testOptions(path, newClock())
	l := open(t, opts)
	o := newOwner()
	mustCommit(t, l, Begin(o))
	l.Close()
	swapped, put := 0, ""
	opts.volume = &hooked{syncs: func(path string) {
		if path != opts.Path {
			swapped, put = swapped+1, path
			if err := errors.Join(os.Remove(path), os.WriteFile(path, []byte("another"), 0o600)); err != nil {
				t.Error(err)
			}
		}
	}}
	l = open(t, opts)
	mustCommit(t, l, inWriter(func(l *Ledger) error { l.store.opts.minLog, l.store.snap = 1, 0; return nil }))
	waitIdle(t, l)
	if s := l.Stats(); swapped == 0 || s.Rewrites != 0 {
		t.Errorf("%d files were put there; %+v", swapped, s)
	}
	must(t, l.InPlace())
	mustCommit(t, l, Begin(newOwner()))
	l.Close()
	if snap, err := Read(path, testKinds); err != nil || len(snap.Owners) != 2 {
		t.Errorf("Read: %+v, %v", snap, err)
	}
	if raw, err := os.ReadFile(put); err != nil || string(raw) != "another" {
		t.Errorf("the other file is now %.20q, %v", raw, err)
	}
}

// Files that are somebody else's stay, whatever their names are.
func TestOthersFiles(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger.db")
	others := map[string][]byte{
		path + ".new":            nil,
		path + ".new-1":          nil,
		path + ".new-0":          make([]byte, sectorSize),
		asidePath(path, 1):       []byte("another"),
		asidePath(path, 2):       fileHead{id: 3}.sector(),
		asidePath(path+"2", 1):   nil,
		asidePath(path, 1) + "0": nil,
	}
	for name, raw := range others {
		writeAll(t, name, raw)
	}
	must(t, os.Mkdir(asidePath(path, 4), 0o700))
	must(t, os.Symlink(path+".new", asidePath(path, 5)))
	opts := testOptions(path, newClock())
	l := open(t, opts)
	mustCommit(t, l, Begin(newOwner()))
	rewriteNow(t, l)
	l.Close()
	_, err := Replace(opts, []Op{Begin(newOwner())})
	must(t, err)
	for name, raw := range others {
		if now, err := os.ReadFile(name); err != nil || !bytes.Equal(now, raw) {
			t.Errorf("%s is now %.20q, %v", name, now, err)
		}
	}
	for _, id := range []uint64{4, 5} {
		_, err := os.Lstat(asidePath(path, id))
		must(t, err)
	}
}

// A ledger that cannot get its name leaves no file behind.
func TestCreateFails(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger.db")
	opts := testOptions(path, newClock())
	opts.volume = &hooked{renames: func(string) error { return unix.EIO }}
	if _, err := Open(opts); !errors.Is(err, unix.EIO) {
		t.Errorf("Open says %v", err)
	}
	if left, err := os.ReadDir(filepath.Dir(path)); err != nil || len(left) != 1 { // the empty one, whose lock it had
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// Opening a ledger makes the file's content durable, also if nobody has appended to it: the
// former process may have died after it had grown the file, and before its sync.
func TestOpenSyncs(t *testing.T) {
	opts := testOptions(filepath.Join(t.TempDir(), "ledger.db"), newClock())
	open(t, opts).Close()
	synced := 0
	opts.volume = &hooked{datas: func(string) { synced++ }}
	open(t, opts).Close()
	if synced == 0 {
		t.Error("nothing was synced")
	}
}

// If somebody puts another file in the place of an open ledger, that file stays there.
func TestPutAside(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger.db")
	l := open(t, testOptions(path, newClock()))
	must(t, os.Rename(path, path+".aside"))
	writeAll(t, path, []byte("another"))
	mustCommit(t, l, inWriter(func(l *Ledger) error { l.store.opts.minLog, l.store.snap = 1, 0; return nil }), Begin(newOwner()))
	waitIdle(t, l)
	mustCommit(t, l, Begin(newOwner()))
	l.Close()
	if raw, err := os.ReadFile(path); err != nil || string(raw) != "another" {
		t.Errorf("the other file is now %.20q, %v", raw, err)
	}
	if snap, err := Read(path+".aside", testKinds); err != nil || len(snap.Owners) != 2 {
		t.Errorf("what was put aside: %+v, %v", snap, err)
	}
}

// A reader that begins while an agent writes the ledger anew reads the new file once the agent has
// ended.
func TestReadWhileRewritten(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger.db")
	l := open(t, testOptions(path, newClock()))
	old, err := os.Open(path)
	must(t, err)
	defer old.Close()
	mustCommit(t, l, Begin(newOwner()))
	rewriteNow(t, l)
	mustCommit(t, l, Begin(newOwner()))
	if _, err := Open(testOptions(path, newClock())); !errors.Is(err, ErrLocked) {
		t.Errorf("opened while it is in use, and was written anew: %v", err)
	}
	l.Close()
	if size, err := lockFile(old, path, unix.LOCK_SH); err != nil || size != -1 {
		t.Errorf("the old file: %d, %v", size, err)
	}
	if snap, err := Read(path, testKinds); err != nil || len(snap.Owners) != 2 {
		t.Errorf("Read: %+v, %v", snap, err)
	}
}

// If several agents start at once where there is no ledger, one of them gets it, and the
// others get ErrLocked.
func TestCreateAtOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger.db")
	const agents = 8
	ledgers, errs := make([]*Ledger, agents), make([]error, agents)
	var wg sync.WaitGroup
	for i := range agents {
		wg.Go(func() { ledgers[i], errs[i] = Open(testOptions(path, newClock())) })
	}
	wg.Wait()
	have := 0
	for i := range agents {
		if ledgers[i] != nil {
			have++
			mustCommit(t, ledgers[i], Begin(newOwner()))
			ledgers[i].Close()
		} else if !errors.Is(errs[i], ErrLocked) {
			t.Errorf("agent %d: %v", i, errs[i])
		}
	}
	if have != 1 {
		t.Fatalf("%d agents have the ledger", have)
	}
	if n := len(open(t, testOptions(path, newClock())).Owners()); n != 1 {
		t.Errorf("%d owners", n)
	}
}

// Open refuses a ledger in use, and the error names the process that has it.
func TestLocked(t *testing.T) {
	opts := testOptions(filepath.Join(t.TempDir(), "ledger.db"), newClock())
	l := open(t, opts)
	self := fmt.Sprintf("process %d", os.Getpid())
	if _, err := Open(opts); !errors.Is(err, ErrLocked) || !strings.Contains(err.Error(), self) {
		t.Errorf("Open says %v, want it locked by %s", err, self)
	}
	if _, err := Read(opts.Path, testKinds); !errors.Is(err, ErrLocked) || !strings.Contains(err.Error(), self) {
		t.Errorf("Read says %v, want it locked by %s", err, self)
	}
	l.Close()
	open(t, opts).Close()
	if _, err := Read(opts.Path, testKinds); err != nil {
		t.Errorf("Read afterwards: %v", err)
	}
}

func TestFlockPID(t *testing.T) {
	const locks = "1: POSIX  ADVISORY  WRITE 11 08:01:42 0 EOF\n" +
		"2: FLOCK  ADVISORY  WRITE 12 08:01:421 0 EOF\n" +
		"3: FLOCK  ADVISORY  WRITE 13 08:01:42 0 EOF\n" +
		"3: -> FLOCK  ADVISORY  WRITE 14 08:01:43 0 EOF\n" +
		"4: FLOCK  ADVISORY  WRITE 0 08:01:44 0 EOF\nrubbish\n" +
		"5: FLOCK  ADVISORY  WRITE 15 00:2a:42 0 EOF\n"
	disk, tmpfs, overlay := unix.Mkdev(8, 1), unix.Mkdev(0, 0x2a), unix.Mkdev(0, 0x30)
	for _, c := range []struct {
		dev, ino uint64
		want     string
	}{
		{disk, 42, "13"}, {disk, 421, "12"}, {disk, 43, ""}, {disk, 44, ""}, {disk, 1, ""},
		{tmpfs, 42, "15"}, {overlay, 42, "13"},
	} {
		if got := flockPID(locks, c.dev, c.ino); got != c.want {
			t.Errorf("inode %d of device %#x: process %q, want %q", c.ino, c.dev, got, c.want)
		}
	}
}

// Open refuses a file that is no ledger, and leaves it alone.
func TestBadFiles(t *testing.T) {
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	text := strings.Repeat("this is no ledger\n", 1000)
	must(t, errors.Join(
		os.WriteFile(in("text"), []byte(text), 0o600),
		os.WriteFile(in("short"), []byte("x"), 0o600),
		os.Mkdir(in("dir"), 0o700),
		unix.Mkfifo(in("fifo"), 0o600),
	))
	for name, want := range map[string]string{
		"text":       "it is not a ledger",
		"short":      "too few",
		"dir":        "is a directory",
		"fifo":       "not a regular file",
		"missing/db": "its folder must exist",
	} {
		_, err := Open(testOptions(in(name), newClock()))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: Open says %v, want %q", name, err, want)
		}
	}
	if raw, err := os.ReadFile(in("text")); err != nil || string(raw) != text {
		t.Errorf("the text was changed (%v)", err)
	}
	if _, err := Read(in("absent"), testKinds); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Read of nothing says %v", err)
	}
	if _, err := os.Stat(in("absent")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Read has made a file (%v)", err)
	}
	must(t, os.WriteFile(in("empty"), nil, 0o600))
	if snap, err := Read(in("empty"), testKinds); err != nil || len(snap.Owners) != 0 {
		t.Errorf("Read of an empty file: %+v, %v", snap, err)
	}
}

// A ledger on a read-only file system can be read. Open's error says why an agent cannot
// open it.
func TestReadOnly(t *testing.T) {
	d := newDisk(t, "16m")
	opts := testOptions(d.ledger(), newClock())
	l := open(t, opts)
	mustCommit(t, l, Begin(newOwner()))
	l.Close()
	must(t, unix.Mount("tmpfs", d.dir, "tmpfs", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	if snap, err := Read(d.ledger(), testKinds); err != nil || len(snap.Owners) != 1 {
		t.Errorf("Read: %+v, %v", snap, err)
	}
	for _, path := range []string{d.ledger(), filepath.Join(d.dir, "other.db")} {
		opts.Path = path
		if _, err := Open(opts); !errors.Is(err, unix.EROFS) || !strings.Contains(err.Error(), "must be able to write") {
			t.Errorf("Open of %s says %v", path, err)
		}
	}
}

// The holder of a lock that has ended is told from one that lives.
func TestHasEnded(t *testing.T) {
	cmd := exec.Command("true")
	must(t, cmd.Start())
	pid := fmt.Sprint(cmd.Process.Pid)
	nettest.Eventually(t, "the process has ended", func() bool { return hasEnded(pid) })
	must(t, cmd.Wait())
	if hasEnded(pid) || hasEnded(fmt.Sprint(os.Getpid())) {
		t.Error("a process that is gone, or lives, has ended")
	}
}

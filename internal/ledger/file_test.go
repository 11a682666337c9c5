package ledger

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// Open makes a ledger where there is none, or where a crash has left a half-made one.
func TestCreate(t *testing.T) {
	tests := map[string]func(path string) error{
		"nothing there": func(string) error { return nil },
		"an empty file": func(path string) error { return os.WriteFile(path, nil, 0o600) },
		"half of one":   func(path string) error { return os.WriteFile(path+".new", []byte("half"), 0o600) },
		"both": func(path string) error {
			return errors.Join(os.WriteFile(path, nil, 0o600), os.WriteFile(path+".new", make([]byte, 1<<20), 0o600))
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
		"text":       "it is not a bbolt file",
		"short":      "too short",
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

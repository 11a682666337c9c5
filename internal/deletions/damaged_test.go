package deletions

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/root"
)

// newName returns a name for a record's file.
func newName(t testing.TB, r Record) string {
	t.Helper()
	name, err := r.newName()
	must(t, err)
	return name
}

// damage lists things that are no deletions, and how to put each in a deletion's place.
var damage = map[string]struct {
	put  func(path string) error
	want string // in the error
}{
	"empty":      {content(""), "does not end with a checksum"},
	"zeros":      {content(strings.Repeat("\x00", 300)), "does not end with a checksum"},
	"cut off":    {content(whole[:len(whole)/2]), "does not end with a checksum"},
	"one byte":   {content(strings.Replace(whole, "10.88.0.7", "10.88.0.8", 1)), "checksum is wrong"},
	"version":    {content(string(seal([]byte(`{"version":2`)))), "version"},
	"too long":   {content(whole + strings.Repeat(" ", MaxSize)), "at most 4096"},
	"very long":  {func(path string) error { return errors.Join(content("")(path), os.Truncate(path, 1<<40)) }, "at most 4096"},
	"another's":  {content(otherKey()), "another attachment's"},
	"folder":     {func(path string) error { return os.Mkdir(path, 0o700) }, "not a regular file"},
	"full":       {func(path string) error { return os.MkdirAll(path+"/in/it", 0o700) }, "not a regular file"},
	"link":       {func(path string) error { return os.Symlink("/etc/hostname", path) }, "not a regular file"},
	"link away":  {func(path string) error { return os.Symlink("nowhere", path) }, "not a regular file"},
	"link round": {func(path string) error { return os.Symlink(filepath.Base(path), path) }, "not a regular file"},
	"pipe":       {func(path string) error { return unix.Mkfifo(path, 0o600) }, "not a regular file"},
}

var whole = func() string { raw, _ := example.encode(); return string(raw) }()

func otherKey() string {
	r := example
	r.Container = "c2"
	raw, _ := r.encode()
	return string(raw)
}

func content(text string) func(path string) error {
	return func(path string) error { return os.WriteFile(path, []byte(text), 0o600) }
}

// The queue sets each damaged file aside, shows it, and does the other deletions (cilium: a
// truncated file is lost; PEERS.md, B).
func TestDamaged(t *testing.T) {
	for name, test := range damage {
		t.Run(name, func(t *testing.T) {
			dir := root.Dir(t.TempDir())
			q := open(t, dir)
			mustWrite(t, dir, numbered(2))
			bad := newName(t, example)
			must(t, test.put(filepath.Join(Path(dir), bad)))
			for range 2 {
				if got := containers(mustPending(t, q)); got != "c2" {
					t.Errorf("pending are %q", got)
				}
				d, err := q.Damaged()
				if err != nil || len(d) != 1 || d[0].Name != bad || d[0].Since.IsZero() {
					t.Fatalf("damaged: %v, %v", d, err)
				}
				if d[0].Err == nil || !strings.Contains(d[0].Err.Error(), test.want) {
					t.Errorf("the error is %v, without %q", d[0].Err, test.want)
				}
				q = open(t, dir) // and in the next run
			}
			if info, err := os.Stat(filepath.Join(Path(dir), damagedName)); err != nil || info.Mode() != os.ModeDir|0o700 {
				t.Errorf("%v, %v", info, err)
			}
		})
	}
}

// Other files are no deletions, either, and several of them may have the same name.
func TestForeignFiles(t *testing.T) {
	dir := root.Dir(t.TempDir())
	q := open(t, dir)
	for range 3 {
		for _, name := range []string{"notes.txt", ".hidden", "x.json"} {
			must(t, os.WriteFile(filepath.Join(Path(dir), name), []byte(whole), 0o600))
		}
		if err := os.Mkdir(filepath.Join(Path(dir), "lost+found"), 0o700); err != nil && !errors.Is(err, os.ErrExist) {
			t.Fatal(err)
		}
		if got := mustPending(t, q); len(got) > 0 {
			t.Errorf("pending are %v", got)
		}
	}
	d, err := q.Damaged()
	if err != nil || len(d) != 9 {
		t.Errorf("damaged: %v, %v", d, err)
	}
	if got := files(t, dir); !slices.Equal(got, []string{damagedName, "lost+found"}) {
		t.Errorf("left: %v", got)
	}
}

// A look for one attachment's deletions leaves those of other attachments alone.
func TestPendingOfDamaged(t *testing.T) {
	dir := root.Dir(t.TempDir())
	q := open(t, dir)
	mine, other := newName(t, example), newName(t, numbered(2))
	for _, name := range []string{mine, other} {
		must(t, os.WriteFile(filepath.Join(Path(dir), name), nil, 0o600))
	}
	if got, err := q.PendingOf("net", "c1", "eth0"); err != nil || len(got) > 0 {
		t.Errorf("%v, %v", got, err)
	}
	if got := files(t, dir); !slices.Equal(got, sorted(damagedName, other)) {
		t.Errorf("left: %v", got)
	}
}

func sorted(names ...string) []string { slices.Sort(names); return names }

// An older program sets a deletion aside that a newer program has written, and the next newer
// program does it.
func TestTakeBack(t *testing.T) {
	dir := root.Dir(t.TempDir())
	open(t, dir)
	mustWrite(t, dir, example)
	name := files(t, dir)[0]
	path := filepath.Join(Path(dir), damagedName)
	must(t, os.Mkdir(path, 0o700))
	must(t, os.Rename(filepath.Join(Path(dir), name), filepath.Join(path, name)))
	must(t, os.WriteFile(filepath.Join(path, newName(t, example)), []byte("still"), 0o600))
	q := open(t, dir)
	if err := q.TakeBack(); err != nil {
		t.Error(err)
	}
	if got := containers(mustPending(t, q)); got != "c1" {
		t.Errorf("pending are %q", got)
	}
	if d, err := q.Damaged(); err != nil || len(d) != 1 {
		t.Errorf("damaged: %v, %v", d, err)
	}
}

// An error of the system in reading a file says nothing about the file. An error about the
// file's content or its type will be the same the next time.
func TestPassing(t *testing.T) {
	for _, err := range []error{unix.EIO, unix.EACCES, unix.EPERM, unix.EMFILE, unix.ENOMEM, unix.ESTALE, unix.EUCLEAN} {
		if !passing(fmt.Errorf("reading: %w", err)) {
			t.Errorf("%v has a deletion set aside", err)
		}
	}
	_, empty := parse(nil)
	for _, err := range []error{errName, errKey, errRegular, empty} {
		if passing(err) {
			t.Errorf("%v is waited for", err)
		}
	}
}

// Readable deletions can be done even if the queue can set nothing aside, and unreadable ones
// are not lost.
func TestNothingSetAside(t *testing.T) {
	nettest.Need(t) // for the mount
	dir := root.Dir(mount(t, "size=1m"))
	q := open(t, dir)
	mustWrite(t, dir, example)
	bad := newName(t, example)
	must(t, os.WriteFile(filepath.Join(Path(dir), bad), nil, 0o600))
	remount(t, string(dir), unix.MS_RDONLY)
	entries, err := q.Pending()
	if got := containers(entries); got != "c1" || !errors.Is(err, unix.EROFS) || !strings.Contains(err.Error(), bad) {
		t.Errorf("pending are %q, %v", got, err)
	}
	if err := q.Remove(entries[0].Name); !errors.Is(err, unix.EROFS) {
		t.Errorf("removing: %v", err)
	}
	if err := Write(dir, example); !errors.Is(err, unix.EROFS) || !strings.Contains(err.Error(), Path(dir)) {
		t.Errorf("writing: %v", err)
	}
	remount(t, string(dir), 0)
	if got := files(t, dir); len(got) != 2 {
		t.Errorf("left: %v", got)
	}
}

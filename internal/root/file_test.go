package root_test

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/root"
)

// Opening something that is no regular file is an error, and does not wait.
func TestOpenWaitsForNothing(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	nettest.Must(t, unix.Mkfifo(at("fifo"), 0o600))
	l, err := net.Listen("unix", at("socket"))
	nettest.Must(t, err)
	defer l.Close()
	nettest.Must(t, os.WriteFile(at("file"), []byte("text"), 0o600))
	for _, path := range []string{at("fifo"), at("socket"), dir, "/dev/null", "/dev/ptmx"} {
		if _, err := root.ReadFile(path); !errors.Is(err, root.ErrIrregular) {
			t.Errorf("%s: %v", path, err)
		}
	}
	if _, err := root.ReadFile(at("nothing")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("nothing: %v", err)
	}
	if text, err := root.ReadFile(at("file")); err != nil || string(text) != "text" {
		t.Errorf("a file: %q, %v", text, err)
	}
}

// A file may have just the bound, and no byte more.
func TestReadBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte("12345"), 0o600); err != nil {
		t.Fatal(err)
	}
	if raw, err := root.ReadBounded(path, 5); err != nil || string(raw) != "12345" {
		t.Errorf("at its bound: %q, %v", raw, err)
	}
	if _, err := root.ReadBounded(path, 4); err == nil || !strings.Contains(err.Error(), "more than 4 bytes") {
		t.Errorf("beyond it: %v", err)
	}
}

// A link at the path is refused, wherever it leads; a file is read as ever.
func TestReadBoundedUnlinked(t *testing.T) {
	dir := t.TempDir()
	path, link := filepath.Join(dir, "file"), filepath.Join(dir, "link")
	nettest.Must(t, os.WriteFile(path, []byte("12345"), 0o600), os.Symlink(path, link), os.Symlink("nowhere", link+"2"))
	if raw, err := root.ReadBoundedUnlinked(path, 5); err != nil || string(raw) != "12345" {
		t.Errorf("a file: %q, %v", raw, err)
	}
	if _, err := root.ReadBoundedUnlinked(path, 4); err == nil || !strings.Contains(err.Error(), "more than 4 bytes") {
		t.Errorf("beyond its bound: %v", err)
	}
	for _, link := range []string{link, link + "2"} {
		if raw, err := root.ReadBoundedUnlinked(link, 5); !errors.Is(err, root.ErrIrregular) {
			t.Errorf("a link: %q, %v", raw, err)
		}
	}
	if raw, err := root.ReadBounded(link, 5); err != nil || string(raw) != "12345" {
		t.Errorf("a link that may be followed: %q, %v", raw, err)
	}
}

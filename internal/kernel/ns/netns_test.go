package ns_test

import (
	"encoding/json"
	"errors"
	"go/parser"
	"go/token"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/nettest"
)

func TestMain(m *testing.M) { nettest.Main(m) }

var must = nettest.Must

func TestOpenRefuses(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	must(t, os.WriteFile(at("file"), nil, 0o600))
	must(t, unix.Mkfifo(at("fifo"), 0o600))
	must(t, os.Symlink("loop", at("loop")))
	must(t, os.Symlink("nowhere", at("dangling")))
	short := filepath.Join(os.TempDir(), "s"+strconv.Itoa(os.Getpid())) // the kernel limits the length of a socket's path
	listener, err := net.Listen("unix", short)
	must(t, err)
	defer listener.Close()

	before := openFiles(t)
	for _, test := range []struct {
		path string
		err  error
		says string
	}{
		{at("missing"), ns.ErrGone, "missing"},
		{at("missing/too"), ns.ErrGone, "missing"},
		{at("dangling"), ns.ErrGone, "dangling"},
		{"/proc/4194305/ns/net", ns.ErrGone, "4194305"}, // above the highest pid_max
		{"", ns.ErrNotNetns, "empty"},
		{"a\x00b", ns.ErrNotNetns, "invalid"},
		{dir, ns.ErrNotNetns, "a directory"},
		{at("file"), ns.ErrNotNetns, "a regular file"},
		{at("file"), ns.ErrFile, "a regular file"},
		{at("file/below"), ns.ErrNotNetns, "not a directory"},
		{at("fifo"), ns.ErrNotNetns, "a FIFO"},
		{at("loop"), ns.ErrNotNetns, "too many levels"},
		{at(strings.Repeat("x", 300)), ns.ErrNotNetns, "name too long"},
		{short, ns.ErrNotNetns, "a socket"},
		{"/dev/null", ns.ErrNotNetns, "a character device"},
		{"/proc/self/ns/mnt", ns.ErrNotNetns, "a mount namespace"},
		{"/proc/self/ns/pid", ns.ErrNotNetns, "a pid namespace"},
		{"/proc/self/ns/user", ns.ErrNotNetns, "a user namespace"},
	} {
		n, err := ns.Open(test.path)
		if err == nil {
			n.Close()
		}
		if !errors.Is(err, test.err) || !strings.Contains(err.Error(), test.says) {
			t.Errorf("Open(%.60q) = %v; want %q, with %q", test.path, err, test.err, test.says)
		}
	}
	if after := openFiles(t); after != before {
		t.Errorf("%d files open before, %d after", before, after)
	}
}

func TestIdentity(t *testing.T) {
	a, b := nettest.Pod(t), nettest.Pod(t)
	link := filepath.Join(t.TempDir(), "link")
	must(t, os.Symlink(a.Ref().Path, link))
	again, err := ns.Open(link)
	must(t, err)
	defer again.Close()
	if again.Ref().Path != link {
		t.Errorf("opened at %s, shown at %s", link, again.Ref().Path)
	}
	if !a.Ref().Same(again.Ref()) || a.Ref().Same(b.Ref()) {
		t.Errorf("same: %v and %v; other: %v", a.Ref(), again.Ref(), b.Ref())
	}
	inside := func() (r ns.Ref) {
		a.Do(func() error {
			self, err := ns.Self()
			if err != nil {
				t.Error(err)
				return nil
			}
			defer self.Close()
			r = self.Ref()
			return nil
		})
		return r
	}()
	if !inside.Same(a.Ref()) {
		t.Errorf("Self inside %+v is %+v", a.Ref(), inside)
	}
	if a.Ref().ID == 0 || a.Ref().ID == b.Ref().ID {
		t.Errorf("ids %d and %d: they must differ, and be known", a.Ref().ID, b.Ref().ID)
	}
	noID := a.Ref()
	noID.ID = 0
	if !noID.Same(a.Ref()) || !a.Ref().Same(noID) {
		t.Error("an unknown id makes a namespace another")
	}
	var cookie uint64
	must(t, a.Do(func() (err error) { cookie, err = ns.Cookie(); return err }))
	if cookie != a.Ref().ID {
		t.Logf("this kernel's ids and cookies differ: %d and %d", a.Ref().ID, cookie)
	}
}

// The kernel gives a dead namespace's inode number to a new namespace, as soon as
// it has cleared the dead one away.
func TestReusedInode(t *testing.T) {
	dead := make(map[uint64]ns.Ref)
	nettest.Eventually(t, "an inode number to be used again", func() bool {
		n := nettest.Pod(t)
		defer nettest.Delete(t, n)
		old, reused := dead[n.Ref().Ino]
		if reused && n.Ref().Same(old) {
			t.Errorf("%+v is taken for the dead %+v", n.Ref(), old)
		}
		dead[n.Ref().Ino] = n.Ref()
		return reused
	})
}

func TestRefOpen(t *testing.T) {
	pod := nettest.Pod(t)
	ref := pod.Ref()
	n, err := ref.Open()
	must(t, err)
	n.Close()

	other := nettest.Pod(t)
	before := openFiles(t)
	moved := other.Ref()
	moved.Path = ref.Path // as if somebody had bound the path anew
	if _, err := moved.Open(); !errors.Is(err, ns.ErrGone) {
		t.Errorf("another namespace at the path: %v", err)
	}
	if after := openFiles(t); after != before {
		t.Errorf("%d files open before, %d after", before, after)
	}
	nettest.Delete(t, pod)
	if _, err := ref.Open(); !errors.Is(err, ns.ErrGone) {
		t.Errorf("nothing at the path: %v", err)
	}
	must(t, os.WriteFile(ref.Path, nil, 0o600))
	if _, err := ref.Open(); !errors.Is(err, ns.ErrGone) || !strings.Contains(err.Error(), "regular file") {
		t.Errorf("a file at the path: %v", err)
	}
}

func TestRefIsTheAPIs(t *testing.T) {
	r := ns.Ref{Path: "/run/netns/a", Dev: 4, Ino: 5, ID: 6}
	a, err := json.Marshal(r)
	must(t, err)
	b, err := json.Marshal(api.Netns(r))
	must(t, err)
	if string(a) != string(b) {
		t.Errorf("%s here, %s in the API", a, b)
	}
}

func TestClosedTwice(t *testing.T) {
	n, err := ns.Self()
	must(t, err)
	if err := n.Close(); err != nil {
		t.Error(err)
	}
	if n.Close() == nil {
		t.Error("the second Close closed something")
	}
}

// The plugin links this package: see the design, section 6.
func TestImportsAreFew(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ImportsOnly)
		must(t, err)
		for _, i := range f.Imports {
			path, _ := strconv.Unquote(i.Path.Value)
			// Both import the standard library alone.
			own := path == "github.com/berth-net/berth/internal/patience" || path == "github.com/berth-net/berth/internal/kernel/linklock"
			if path == "net" || path == "net/http" || strings.Contains(path, ".") && path != "golang.org/x/sys/unix" && !own {
				t.Errorf("%s imports %s", file, path)
			}
		}
	}
}

func openFiles(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	return len(entries)
}

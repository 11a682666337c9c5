package server

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/api/client"
	"github.com/berth-net/berth/internal/root"
)

func mode(t *testing.T, path string) fs.FileMode {
	t.Helper()
	info, err := os.Lstat(path)
	must(t, err)
	return info.Mode()
}

func TestSocketIsClosedToOthers(t *testing.T) {
	dir := root.Dir(t.TempDir())
	must(t, os.MkdirAll(dir.Run(), 0o777))
	a := newToy(t, dir, 0)
	a.run(t)
	if m := mode(t, dir.Run()); m != fs.ModeDir|0o700 {
		t.Errorf("the folder has mode %v", m)
	}
	if m := mode(t, dir.Socket()); m != fs.ModeSocket|0o600 {
		t.Errorf("the socket has mode %v", m)
	}
	if _, err := a.client.Health(t.Context()); err != nil {
		t.Error(err)
	}
	if err := a.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	left, _ := filepath.Glob(filepath.Join(dir.Run(), "*"))
	if len(left) > 0 {
		t.Errorf("left after the stop: %v", left)
	}
}

func TestLongRoot(t *testing.T) {
	dir := root.Dir(filepath.Join(t.TempDir(), strings.Repeat("r", 200)))
	must(t, os.Mkdir(string(dir), 0o755))
	a := newToy(t, dir, 0)
	a.run(t)
	if h, err := a.client.Health(t.Context()); err != nil || h.Serving {
		t.Errorf("health of an agent that is not open: %v, %v", h, err)
	}
	if err := newToy(t, dir, 0).Listen(dir); !errors.Is(err, ErrServed) {
		t.Errorf("a second agent: %v", err)
	}
}

// What Listen refuses, Relisten refuses in the same words, so that a daemon that tries again each
// second has one line for its log. None of it is taken for another daemon, beside which no daemon
// starts.
func TestListenRefuses(t *testing.T) {
	for name, test := range map[string]struct {
		prepare func(dir root.Dir) error
		want    string
	}{
		"no root": {func(dir root.Dir) error { return os.Remove(string(dir)) }, "no such file or directory"},
		"a file":  {func(dir root.Dir) error { return os.WriteFile(dir.Socket(), []byte("text"), 0o600) }, "is not a socket"},
		"a folder that is not empty": {func(dir root.Dir) error {
			return os.MkdirAll(filepath.Join(dir.Socket(), "below"), 0o700)
		}, "removing the folder"},
		"a link to a file": {func(dir root.Dir) error {
			file := filepath.Join(string(dir), "file")
			return errors.Join(os.WriteFile(file, []byte("text"), 0o600), os.Symlink(file, dir.Socket()))
		}, "is not a socket"},
		"no folder": {func(dir root.Dir) error {
			elsewhere := filepath.Join(string(dir), "elsewhere")
			return errors.Join(os.Remove(dir.Run()), os.Mkdir(elsewhere, 0o700), os.Symlink(elsewhere, dir.Run()))
		}, "is not a folder"},
		"a file instead of the folder": {func(dir root.Dir) error {
			return errors.Join(os.Remove(dir.Run()), os.WriteFile(dir.Run(), nil, 0o600))
		}, "is not a folder"},
		"another program's socket": {func(dir root.Dir) error {
			s, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: dir.Socket(), Net: "unixgram"})
			t.Cleanup(func() { s.Close() })
			return err
		}, "something else is in the place"},
		"a folder in the new socket's place": {func(dir root.Dir) error {
			return os.MkdirAll(filepath.Join(dir.Socket()+".new", "below"), 0o700)
		}, "removing the socket that a killed agent left"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := root.Dir(t.TempDir())
			if name != "no root" {
				must(t, os.MkdirAll(dir.Run(), 0o700))
			}
			must(t, test.prepare(dir))
			a := newToy(t, dir, 0)
			err := a.Listen(dir)
			if err == nil || !strings.Contains(err.Error(), test.want) || errors.Is(err, ErrServed) {
				t.Errorf("got %v, want ... %s", err, test.want)
			}
			if again, same := a.Relisten(); again || same == nil || same.Error() != err.Error() {
				t.Errorf("again: %v, %v; the first time: %v", again, same, err)
			}
			left, _ := filepath.Glob(dir.Run() + "/*.new")
			if len(left) > 0 && !strings.HasSuffix(name, "the new socket's place") {
				t.Errorf("left behind: %v", left)
			}
		})
	}
}

// What is empty is not in the socket's way: a container runtime makes a folder at the path of a bind
// mount whose source is not there yet.
func TestListenReplaces(t *testing.T) {
	for name, prepare := range map[string]func(string) error{
		"a folder": func(path string) error { return os.Mkdir(path, 0o755) },
		"a file":   func(path string) error { return os.WriteFile(path, nil, 0o600) },
		"a pipe":   func(path string) error { return unix.Mkfifo(path, 0o600) },
		"a link":   func(path string) error { return os.Symlink("nowhere", path) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := root.Dir(t.TempDir())
			must(t, os.MkdirAll(dir.Run(), 0o700))
			must(t, prepare(dir.Socket()))
			a := newToy(t, dir, 0)
			a.run(t)
			if _, err := a.client.Health(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

// A second agent cannot listen beside a live one, but can replace one that was killed.
func TestSocketIsNotStolen(t *testing.T) {
	dir := root.Dir(t.TempDir())
	must(t, os.MkdirAll(dir.Run(), 0o700))
	killed, err := net.Listen("unix", dir.Socket())
	must(t, err)
	killed.(*net.UnixListener).SetUnlinkOnClose(false)
	a := newToy(t, dir, 0)
	if err := a.Listen(dir); !errors.Is(err, ErrServed) {
		t.Fatalf("beside a live agent: %v", err)
	}
	must(t, killed.Close())
	must(t, os.WriteFile(dir.Socket()+".new", nil, 0o600)) // the agent was killed while it listened
	a.run(t)
	if _, err := a.client.Health(t.Context()); err != nil {
		t.Errorf("in the place of a killed agent: %v", err)
	}
}

// An agent whose socket another agent has replaced leaves the other agent's socket alone when it stops.
func TestSuccessorKeepsItsSocket(t *testing.T) {
	dir := root.Dir(t.TempDir())
	first := newToy(t, dir, 0)
	first.run(t)
	must(t, os.Remove(dir.Socket()))
	second := newToy(t, dir, 0)
	second.run(t)
	must(t, first.Shutdown(t.Context()))
	if _, err := second.client.Health(t.Context()); err != nil {
		t.Errorf("after the predecessor's stop: %v", err)
	}
}

// If somebody removes the socket, or its whole folder, connected clients stay connected,
// and later ones are served.
func TestRelisten(t *testing.T) {
	a := startToy(t)
	if again, err := a.Relisten(); again || err != nil {
		t.Fatalf("nothing was removed: %v, %v", again, err)
	}
	connected := client.New(a.dir.Socket())
	defer connected.Close()
	for name, remove := range map[string]func() error{
		"the socket": func() error { return os.Remove(a.dir.Socket()) },
		"the folder": func() error { return os.RemoveAll(a.dir.Run()) },
		"renamed":    func() error { return os.Rename(a.dir.Socket(), a.dir.Socket()+".old") },
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := connected.Health(t.Context()); err != nil {
				t.Fatal(err)
			}
			must(t, remove())
			if again, err := a.Relisten(); !again || err != nil {
				t.Errorf("%v, %v", again, err)
			}
			later := client.New(a.dir.Socket())
			defer later.Close()
			for _, c := range []*client.Client{connected, later} {
				if _, err := c.Health(t.Context()); err != nil {
					t.Error(err)
				}
			}
			if m := mode(t, a.dir.Socket()); m != fs.ModeSocket|0o600 {
				t.Errorf("the socket has mode %v", m)
			}
		})
	}
}

// Relisten does not replace anything in the socket's place, unless it is empty, or a dead agent's
// socket.
func TestRelistenSparesOthers(t *testing.T) {
	a := startToy(t)
	for name, put := range map[string]func() error{
		"a file":           func() error { return os.WriteFile(a.dir.Socket(), []byte("text"), 0o600) },
		"nowhere to be at": func() error { return os.RemoveAll(string(a.dir)) },
	} {
		must(t, os.Remove(a.dir.Socket()))
		must(t, put())
		if again, err := a.Relisten(); again || err == nil || !strings.Contains(err.Error(), "berthd.sock again: ") {
			t.Errorf("%s: %v, %v", name, again, err)
		}
		must(t, os.MkdirAll(a.dir.Run(), 0o700))
		if err := os.Remove(a.dir.Socket()); err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
		if again, err := a.Relisten(); !again || err != nil {
			t.Errorf("after %s: %v, %v", name, again, err)
		}
	}
}

// The server refuses another user, even if the socket's modes would let it connect
// (CVE-2022-29178).
func TestPeer(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can become another user")
	}
	base, err := os.MkdirTemp("/tmp", "peer") // other users cannot enter t.TempDir
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(base) })
	dir := root.Dir(base)
	a := newToy(t, dir, 0)
	a.run(t)
	for path, mode := range map[string]fs.FileMode{base: 0o755, dir.Run(): 0o755, dir.Socket(): 0o666} {
		must(t, os.Chmod(path, mode))
	}
	for uid, want := range map[int]error{0: nil, 12345: unix.ECONNRESET} {
		if got := askAs(t, uid, dir.Socket()); !errors.Is(got, want) {
			t.Errorf("as user %d: %v, want %v", uid, got, want)
		}
	}
}

// askAs connects as a user and waits for an answer. A refusal is ECONNRESET.
func askAs(t *testing.T, uid int, path string) error {
	type dialed struct {
		conn net.Conn
		err  error
	}
	got := make(chan dialed)
	go func() {
		runtime.LockOSThread() // for good: the thread ends with its user
		// This changes only this thread's user; the library's setuid(2) would change that
		// of all threads.
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, ^uintptr(0), uintptr(uid), ^uintptr(0)); errno != 0 {
			got <- dialed{nil, errno}
			return
		}
		conn, err := net.Dial("unix", path)
		got <- dialed{conn, err}
	}()
	d := <-got
	if d.err != nil {
		t.Fatal(d.err)
	}
	tr := &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) { return d.conn, nil }}
	defer tr.CloseIdleConnections()
	req, err := http.NewRequestWithContext(t.Context(), "GET", "http://daemon/v1/health", nil)
	must(t, err)
	resp, err := tr.RoundTrip(req)
	if err != nil {
		t.Log(err) // EOF, EPIPE or ECONNRESET: the server closed it
		return unix.ECONNRESET
	}
	return resp.Body.Close()
}

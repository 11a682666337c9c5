package wire

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/boottime"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/root"
)

// A request that may wait finds an agent that comes back meanwhile, whether it left nothing, an
// empty run folder or its dead socket. The pauses between two tries grow, and end.
func TestAwait(t *testing.T) {
	for name, left := range map[string]func(root.Dir) error{
		"nothing": func(root.Dir) error { return nil },
		"its run folder": func(dir root.Dir) error {
			return os.MkdirAll(dir.Run(), 0o700)
		},
		"its socket": func(dir root.Dir) error {
			if err := os.MkdirAll(dir.Run(), 0o700); err != nil {
				return err
			}
			fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			return unix.Bind(fd, &unix.SockaddrUnix{Name: dir.Socket()})
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := root.Dir(t.TempDir())
			nettest.Must(t, left(dir))
			var pauses []time.Duration
			c, err := await(dir, Request{Deadline: in(time.Minute), Await: in(time.Minute)}, func(d time.Duration) {
				if pauses = append(pauses, d); len(pauses) == 9 {
					listenAt(t, dir)
				}
			})
			nettest.Must(t, err)
			c.close()
			const ms = time.Millisecond
			if want := []time.Duration{1 * ms, 2 * ms, 4 * ms, 8 * ms, 16 * ms, 32 * ms, 50 * ms, 50 * ms, 50 * ms}; !slices.Equal(pauses, want) {
				t.Errorf("pauses %v, want %v", pauses, want)
			}
		})
	}
}

// A request does not wait if the agent is there, if the request must not wait, or if the
// agent's root is not there; and no request waits beyond its time.
func TestAwaitNobody(t *testing.T) {
	away, here := root.Dir(t.TempDir()), root.Dir(t.TempDir())
	listenAt(t, here)
	for _, tt := range []struct {
		name string
		dir  root.Dir
		r    Request
		want error
	}{
		{"there", here, Request{Deadline: in(time.Minute), Await: in(time.Minute)}, nil},
		{"not to be waited for", away, Request{Deadline: in(time.Minute)}, unix.ENOENT},
		{"no root", away + "/none", Request{Deadline: in(time.Minute), Await: in(time.Minute)}, unix.ENOENT},
		{"no time to wait", away, Request{Deadline: in(time.Minute), Await: in(-time.Second)}, unix.ENOENT},
		{"no time at all", away, Request{Deadline: in(-time.Second), Await: in(time.Minute)}, ErrDeadline},
	} {
		c, err := await(tt.dir, tt.r, func(d time.Duration) { t.Fatalf("%s: pauses for %v", tt.name, d) })
		if !errors.Is(err, tt.want) {
			t.Errorf("%s: %v, want %v", tt.name, err, tt.want)
		}
		if err == nil {
			c.close()
		}
	}
}

// in returns the CLOCK_BOOTTIME, in nanoseconds, of a moment that is d away from now.
func in(d time.Duration) int64 { return boottime.Now() + int64(d) }

// listenAt makes an agent's socket, as a starting agent does.
func listenAt(t *testing.T, dir root.Dir) {
	t.Helper()
	nettest.Must(t, os.MkdirAll(dir.Run(), 0o700))
	fresh := filepath.Join(dir.Run(), "fresh")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: fresh, Net: "unix"})
	nettest.Must(t, err)
	l.SetUnlinkOnClose(false)
	t.Cleanup(func() { l.Close() })
	nettest.Must(t, os.Rename(fresh, dir.Socket()))
}

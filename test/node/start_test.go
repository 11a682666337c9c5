package node

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/deletions"
	"github.com/berth-net/berth/internal/nettest"
)

// The supervisor does not read its socket (NOTIFY_SOCKET): the agent serves, does what it
// does on its own, and ends. When the supervisor reads, it hears that the agent is ready.
func TestSupervisorIsDeaf(t *testing.T) {
	a := newAgent(t, nil, pools)
	t.Cleanup(func() { a.releaseAll(); a.remove() })
	path := filepath.Join(t.TempDir(), "notify")
	supervisor, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	must(t, err)
	defer supervisor.Close()
	fill, err := net.DialUnix("unixgram", nil, supervisor.LocalAddr().(*net.UnixAddr))
	must(t, err)
	defer fill.Close()
	for err == nil { // until the socket is full, so that the next message waits
		must(t, fill.SetWriteDeadline(time.Now().Add(50*time.Millisecond)))
		_, err = fill.Write([]byte("STATUS=another's"))
	}
	a.env = []string{"NOTIFY_SOCKET=" + path}
	a.start()
	a.add("c", nettest.Pod(t))
	must(t, os.Remove(a.root.Socket()))
	nettest.Eventually(t, "the socket to be made again", func() bool {
		_, err := os.Stat(a.root.Socket())
		return err == nil
	})
	a.del("c", wait)
	read := func() string {
		must(t, supervisor.SetReadDeadline(time.Now().Add(nettest.Deadline)))
		buf := make([]byte, 64)
		n, err := supervisor.Read(buf)
		if err != nil {
			t.Fatalf("the supervisor does not hear that the agent is ready: %v", err)
		}
		return string(buf[:n])
	}
	for said := read(); said != "READY=1"; said = read() {
	}
	for err = nil; err == nil; { // full again
		must(t, fill.SetWriteDeadline(time.Now().Add(50*time.Millisecond)))
		_, err = fill.Write([]byte("STATUS=another's"))
	}
	a.stop()
}

// Another program has the metrics' port: the agent works, and serves metrics once the
// port is free.
func TestMetricsPortIsTaken(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	a := newAgent(t, nil, pools, "--metrics="+taken.Addr().String())
	t.Cleanup(func() { a.releaseAll(); a.remove() })
	a.start()
	a.podsOf(1)
	must(t, taken.Close())
	nettest.Eventually(t, "metrics to be served", func() bool {
		resp, err := http.Get("http://" + taken.Addr().String() + "/metrics")
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
	a.del("c0", wait)
	a.stop()
}

// The collector of traces takes connections and answers nothing. The agent starts, serves and ends
// as without it, also while it waits for the collector's answer.
func TestCollectorHangs(t *testing.T) {
	deaf, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer deaf.Close()
	a := newAgent(t, nil)
	t.Cleanup(func() { a.releaseAll(); a.remove() })
	a.configure("tracing: {endpoint: 'http://" + deaf.Addr().String() + "'}\npools:\n- {name: default, cidrs: [10.88.0.0/24]}\n")
	a.start()
	a.podsOf(2)
	conn, err := deaf.Accept() // spans are on their way
	must(t, err)
	defer conn.Close()
	a.del("c0", wait)
	a.stop()
	if strings.Contains(a.log.String(), "background work has not ended") {
		t.Error("the agent's end has waited for the collector")
	}
	a.start()
	a.del("c1", wait)
}

// /run is full. The agent starts, and detaches pods that were deleted meanwhile. It writes the
// marker when there is room.
func TestRunIsFull(t *testing.T) {
	a := newAgent(t, nil, pools)
	t.Cleanup(func() { a.releaseAll(); a.remove() })
	must(t, os.MkdirAll(a.root.Run(), 0o700))
	tmpfs(t, a.root.Run(), "size=64k")
	a.start()
	pods, got := a.podsOf(2)
	fill := func() {
		t.Helper()
		f, err := os.OpenFile(filepath.Join(a.root.Run(), "filler"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
		must(t, err)
		if _, err := io.Copy(f, zeros{}); !errors.Is(err, unix.ENOSPC) {
			t.Fatalf("filling the run folder: %v", err)
		}
		f.Close()
	}
	fill()
	a.kill()
	a.del("c0")
	a.start()
	nettest.Eventually(t, "the deletion to be done", func() bool { return len(a.list()) == 1 })
	nettest.NoPing(t, pods[1], got[0].addrs[0])
	a.kill()
	must(t, os.Remove(a.marker()))
	fill()
	a.start()
	a.del("c1", wait)
	must(t, os.Remove(filepath.Join(a.root.Run(), "filler")))
	nettest.Eventually(t, "the marker to be written", func() bool {
		_, err := os.Stat(a.marker())
		return err == nil
	})
	a.stop()
}

// /run has no file left to give: the agent cannot make its socket. The agent detaches pods that
// were deleted meanwhile, and makes the socket when it can.
func TestRunHasNoInodes(t *testing.T) {
	a := newAgent(t, nil, pools)
	t.Cleanup(func() { a.releaseAll(); a.remove() })
	must(t, os.MkdirAll(a.root.Run(), 0o700))
	tmpfs(t, a.root.Run(), "nr_inodes=100")
	a.start()
	pods, got := a.podsOf(2)
	nettest.Ping(t, pods[1], got[0].addrs[0])
	a.stop()
	a.del("c0")
	var fillers []string
	for err := error(nil); err == nil; {
		name := filepath.Join(a.root.Run(), fmt.Sprint("filler", len(fillers)))
		if err = os.WriteFile(name, nil, 0o600); err == nil {
			fillers = append(fillers, name)
		}
	}
	started := make(chan error, 1)
	go func() { started <- a.tryStart() }()
	nettest.Eventually(t, "the deletion to be done", func() bool {
		files, err := filepath.Glob(filepath.Join(deletions.Path(a.root), "*.json"))
		return err == nil && len(files) == 0
	})
	for _, name := range fillers {
		must(t, os.Remove(name))
	}
	must(t, <-started)
	nettest.NoPing(t, pods[1], got[0].addrs[0])
	a.del("c1", wait)
	a.stop()
}

// Something else is in the place of the socket, of the marker or of their folder: the agent detaches
// pods that were deleted meanwhile, says once what is wrong, and makes the socket when it can.
func TestFolderInTheSocketsPlace(t *testing.T) {
	for name, test := range map[string]struct {
		put   func(t *testing.T, a *agent)
		clear func(t *testing.T, a *agent)
		says  string
	}{
		"a full folder": {
			func(t *testing.T, a *agent) { must(t, os.MkdirAll(filepath.Join(a.root.Socket(), "below"), 0o755)) },
			func(t *testing.T, a *agent) { must(t, os.Remove(filepath.Join(a.root.Socket(), "below"))) },
			"something else is in the place of the agent's socket",
		},
		"a full folder in the new socket's place": {
			func(t *testing.T, a *agent) {
				must(t, os.MkdirAll(filepath.Join(a.root.Socket()+".new", "below"), 0o755))
			},
			func(t *testing.T, a *agent) { must(t, os.RemoveAll(a.root.Socket()+".new")) },
			"removing the socket that a killed agent left",
		},
		"a mount": {
			func(t *testing.T, a *agent) {
				bind(t, nettest.Pod(t), a.root.Socket())
				t.Cleanup(func() { _ = unix.Unmount(a.root.Socket(), unix.MNT_DETACH) }) // if the test failed before
			},
			func(t *testing.T, a *agent) { unbind(t, a.root.Socket(), 0) },
			"something is mounted at",
		},
		"another program's socket": {
			func(t *testing.T, a *agent) {
				s, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: a.root.Socket(), Net: "unixgram"})
				must(t, err)
				t.Cleanup(func() { s.Close() })
			},
			func(t *testing.T, a *agent) { must(t, os.Remove(a.root.Socket())) },
			"another program uses the socket",
		},
		"a link instead of the run folder": {
			func(t *testing.T, a *agent) {
				must(t, os.RemoveAll(a.root.Run()))
				must(t, os.Symlink(t.TempDir(), a.root.Run()))
			},
			func(t *testing.T, a *agent) { must(t, os.Remove(a.root.Run())) },
			"is not a folder",
		},
		"a file instead of the run folder": {
			func(t *testing.T, a *agent) {
				must(t, os.RemoveAll(a.root.Run()))
				must(t, os.WriteFile(a.root.Run(), nil, 0o600))
			},
			func(t *testing.T, a *agent) { must(t, os.Remove(a.root.Run())) },
			"is not a folder",
		},
		"a full folder in the marker's place": {
			func(t *testing.T, a *agent) {
				must(t, os.Remove(a.marker()))
				must(t, os.MkdirAll(filepath.Join(a.marker(), "below"), 0o755))
			},
			func(t *testing.T, a *agent) { must(t, os.RemoveAll(a.marker())) },
			"which is in the place of a file",
		},
	} {
		t.Run(name, func(t *testing.T) {
			a := newAgent(t, nil, pools)
			t.Cleanup(func() { a.releaseAll(); a.remove() })
			a.start()
			pods, got := a.podsOf(2)
			nettest.Ping(t, pods[1], got[0].addrs[0])
			a.stop()
			a.del("c0")
			test.put(t, a)
			started := make(chan error, 1)
			go func() { started <- a.tryStart() }()
			nettest.Eventually(t, "the deletion to be done", func() bool {
				files, err := filepath.Glob(filepath.Join(deletions.Path(a.root), "*.json"))
				return err == nil && len(files) == 0
			})
			nettest.Eventually(t, "the agent to serve, and to lock its instance", func() bool {
				_, err := os.Stat(a.lockFile())
				return err == nil && strings.Count(a.log.String(), "msg=serving") == 2
			})
			for range 2 { // it locks the instance again after each try to make the socket
				a.lose(a.lockFile())
				nettest.Eventually(t, "the lock", func() bool { _, err := os.Stat(a.lockFile()); return err == nil })
			}
			if n := strings.Count(a.log.String(), test.says); n != 1 {
				t.Errorf("it says %d times %q", n, test.says)
			}
			test.clear(t, a)
			must(t, <-started)
			nettest.Eventually(t, "the marker to be written", func() bool {
				info, err := os.Lstat(a.marker())
				return err == nil && info.Mode().IsRegular()
			})
			nettest.NoPing(t, pods[1], got[0].addrs[0])
			a.del("c1", wait)
			a.stop()
		})
	}
}

package runner_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/root"
	"github.com/berth-net/berth/internal/runner"
	"github.com/berth-net/berth/internal/runner/client"
	"github.com/berth-net/berth/internal/runner/wire"
)

var must = nettest.Must

func TestMain(m *testing.M) {
	if dir := os.Getenv(killable); dir != "" {
		serveUntilKilled(root.Dir(dir))
	}
	if pid, err := strconv.Atoi(os.Getenv(tracer)); err == nil {
		trace(pid)
	}
	nettest.Main(m)
}

// world is a runner with a folder of plugins, and a client.
type world struct {
	t      testing.TB
	bin    string
	root   root.Dir
	client *client.Client
	said   said
	runner *runner.Runner
}

// said is what the runner has written into its log.
type said struct {
	mu   sync.Mutex
	text strings.Builder
}

func (s *said) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(p)
}

func (s *said) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

// newWorld returns a world whose runner does not run yet.
func newWorld(t testing.TB) *world {
	dir := root.Dir(t.TempDir())
	w := &world{t: t, bin: filepath.Join(string(dir), "bin"), root: dir, client: client.New(dir.RunnerSocket())}
	must(t, os.Mkdir(w.bin, 0o755))
	t.Cleanup(w.client.Close)
	return w
}

func (w *world) options() runner.Options {
	return runner.Options{Root: w.root, Folders: []string{w.bin}, Processes: 4, Log: slog.New(slog.NewTextHandler(&w.said, nil))}
}

// serve serves until the test ends.
func (w *world) serve(o runner.Options) {
	w.t.Helper()
	r, err := runner.New(o)
	must(w.t, err)
	w.runner = r
	ended := make(chan error, 1)
	go func() { ended <- r.Serve() }()
	w.t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel() // what still runs is killed
		_ = w.shutdown(ctx)
		if err := <-ended; err != nil {
			w.t.Error(err)
		}
	})
}

// shutdown ends the runner once.
func (w *world) shutdown(ctx context.Context) (err error) {
	if w.runner != nil {
		err = w.runner.Shutdown(ctx)
		w.runner = nil
	}
	return err
}

// start makes a world and serves.
func start(t testing.TB) *world {
	t.Helper()
	w := newWorld(t)
	w.serve(w.options())
	return w
}

// script makes a plugin.
func (w *world) script(name, text string) {
	w.t.Helper()
	must(w.t, os.WriteFile(filepath.Join(w.bin, name), []byte("#!/bin/sh\n"+text+"\n"), 0o755))
}

// fifo makes a FIFO, by which a plugin and the test wait for each other.
func (w *world) fifo(name string) string {
	w.t.Helper()
	path := filepath.Join(string(w.root), name)
	must(w.t, unix.Mkfifo(path, 0o600))
	return path
}

// tell writes to a FIFO; it returns when somebody has read it. hear reads a FIFO to its end.
func (w *world) tell(fifo string) {
	w.t.Helper()
	must(w.t, os.WriteFile(fifo, []byte("go\n"), 0))
}

func (w *world) hear(fifo string) string {
	w.t.Helper()
	raw, err := os.ReadFile(fifo)
	must(w.t, err)
	return strings.TrimSpace(string(raw))
}

// request is a request of a verb for a container.
func (w *world) request(plugin, verb, container string) wire.Request {
	return wire.Request{
		Find: wire.Find{Type: plugin, Folders: []string{w.bin}}, Timeout: time.Minute,
		Env: map[string]string{"CNI_COMMAND": verb, "CNI_CONTAINERID": container, "CNI_PATH": w.bin},
	}
}

// add runs a plugin's ADD, which has to be answered.
func (w *world) add(plugin string) *wire.Answer {
	w.t.Helper()
	a, err := w.client.Run(w.t.Context(), w.request(plugin, "ADD", "pod"))
	must(w.t, err)
	return a
}

// gone waits until a process has ended.
func gone(t testing.TB, pid string) {
	t.Helper()
	nettest.Eventually(t, "the end of process "+pid, func() bool {
		raw, err := os.ReadFile("/proc/" + pid + "/stat")
		_, rest, _ := strings.Cut(string(raw), ") ")
		return err != nil || strings.HasPrefix(rest, "Z")
	})
}

// alive reports whether a process runs.
func alive(pid string) bool {
	raw, _ := os.ReadFile("/proc/" + pid + "/stat")
	_, rest, _ := strings.Cut(string(raw), ") ")
	return rest != "" && !strings.HasPrefix(rest, "Z")
}

// begun begins an execution, whose answer comes by the channel.
func (w *world) begun(ctx context.Context, req wire.Request) <-chan result {
	out := make(chan result, 1)
	go func() {
		a, err := w.client.Run(ctx, req)
		out <- result{a, err}
	}()
	return out
}

type result struct {
	answer *wire.Answer
	err    error
}

func (r result) String() string { return fmt.Sprintf("%+v, %v", r.answer, r.err) }

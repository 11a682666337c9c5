package runner_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/root"
	"github.com/berth-net/berth/internal/runner"
)

// Environment variables with which this program is no test.
const (
	killable = "RUNNER_ROOT"  // a runner of this root, whose plugins are in the root's folder bin
	tracer   = "RUNNER_TRACE" // traces this process, until stdin ends
)

// serveUntilKilled is the runner of a root.
func serveUntilKilled(dir root.Dir) {
	r, err := runner.New(runner.Options{Root: dir, Folders: []string{filepath.Join(string(dir), "bin")}, Processes: 4, Log: slog.New(slog.DiscardHandler)})
	if err == nil {
		err = r.Serve()
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// trace traces a process. When the process dies, its parent does not hear of that before its tracer has.
func trace(pid int) {
	runtime.LockOSThread()
	if _, _, errno := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_SEIZE, uintptr(pid), 0, 0, 0, 0); errno != 0 {
		fmt.Println(errno)
		os.Exit(1)
	}
	fmt.Println("traces")
	_, _ = io.Copy(io.Discard, os.Stdin)
	os.Exit(0)
}

// keep has a process stay as a zombie of which its parent does not hear, until letGo is called.
func keep(t *testing.T, pid string) (letGo func()) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), tracer+"="+pid)
	in, err := cmd.StdinPipe()
	must(t, err)
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	if line, _ := bufio.NewReader(out).ReadString('\n'); line != "traces\n" {
		_ = in.Close()
		_ = cmd.Wait()
		t.Skipf("no process can be traced here: %s", line)
	}
	return func() { must(t, in.Close(), cmd.Wait()) }
}

func kill(pid string) error {
	n, err := strconv.Atoi(pid)
	return errors.Join(err, unix.Kill(n, unix.SIGKILL))
}

// other starts a runner of the world's root in a process of its own.
func (w *world) other() *exec.Cmd {
	w.t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), killable+"="+string(w.root))
	cmd.Stderr = w.t.Output()
	must(w.t, cmd.Start())
	w.t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	nettest.Eventually(w.t, "the runner to listen", func() bool {
		_, err := w.client.Find(w.t.Context(), "nothing", []string{w.bin})
		return err != nil && strings.Contains(err.Error(), "is not in")
	})
	return cmd
}

// A runner that is killed leaves no plugin running: the plugin dies with it, and what the plugin has
// started dies before the next runner runs anything for the container. What a plugin that had ended left
// running lives.
func TestKilledRunner(t *testing.T) {
	w := newWorld(t)
	pids := w.fifo("pids")
	w.script("half", `setsid sleep 1000 & a=$!; sleep 1000 & echo $$ $a $! >`+pids+`; wait`)
	w.script("daemon", `setsid sleep 1000 >/dev/null 2>&1 </dev/null & echo $!`)
	first := w.other()
	a, err := w.client.Run(t.Context(), w.request("daemon", "ADD", "pod"))
	must(t, err)
	daemon := strings.TrimSpace(string(a.Stdout))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	end := w.begun(ctx, w.request("half", "ADD", "pod"))
	half := strings.Fields(w.hear(pids))
	if len(half) != 3 {
		t.Fatalf("processes %q", half)
	}
	must(t, first.Process.Kill())
	_ = first.Wait()
	if r := <-end; r.err == nil {
		t.Errorf("a runner that was killed answers %v", r)
	}
	gone(t, half[0])
	for _, child := range half[1:] {
		if !alive(child) {
			t.Errorf("%s has ended already, and the test shows nothing", child)
		}
	}
	goOn := make(chan struct{})
	o := w.options()
	o.Looked(func() { <-goOn })
	w.serve(o)
	w.script("fine", `echo fine`)
	_, err = w.client.Run(t.Context(), w.request("fine", "DEL", "other"))
	must(t, err)
	w.script("look", `for p in `+strings.Join(half, " ")+`; do grep -q '^State:.[^Z]' /proc/$p/status 2>/dev/null && echo $p lives; done; exit 0`)
	retry := w.begun(t.Context(), w.request("look", "DEL", "pod"))
	nettest.Eventually(t, "the container's request to wait", func() bool { return w.runner.Waiting() == 1 })
	close(goOn)
	if r := <-retry; r.err != nil || len(r.answer.Stdout) > 0 {
		t.Errorf("during the retry: %v", r)
	}
	if !alive(daemon) {
		t.Error("the daemon of a plugin that had ended is dead")
	}
	must(t, kill(daemon))
	if left, err := os.ReadDir(w.root.Running()); err != nil || len(left) > 0 {
		t.Errorf("records that are left: %v, %v", left, err)
	}
}

// Only one runner serves a root.
func TestSecondRunner(t *testing.T) {
	w := start(t)
	w.script("fine", `echo fine`)
	if _, err := runner.New(w.options()); !errors.Is(err, runner.ErrServed) {
		t.Errorf("a second runner: %v", err)
	}
	if a := w.add("fine"); string(a.Stdout) != "fine\n" {
		t.Errorf("the first one: %+v", a)
	}
}

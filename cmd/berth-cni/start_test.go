package main

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/berth-net/berth/internal/boottime"
	"github.com/berth-net/berth/internal/nettest"
)

// starts is an agent that remembers when requests began.
type starts struct {
	mu    sync.Mutex
	began []int64
}

// listen makes the agent answer at a root. Each answer takes at least the duration `slow`.
func (s *starts) listen(t *testing.T, root string, slow time.Duration) {
	start(t, root, func(w http.ResponseWriter, r *http.Request) {
		at, err := strconv.ParseInt(r.Header.Get("Berth-Started"), 10, 64)
		if err != nil {
			t.Errorf("started at %v", err)
		}
		s.mu.Lock()
		s.began = append(s.began, at)
		s.mu.Unlock()
		for until := boottime.Now() + int64(slow); boottime.Now() < until; {
			runtime.Gosched()
		}
		io.WriteString(w, `{"released":1}`)
	})
}

// newDelete returns the command of a DEL.
func newDelete(root string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(bin, "berth-cni"))
	for k, v := range podEnv("DEL") {
		cmd.Env = append(cmd.Env, k+"="+v)
	}
	cmd.Stdin = strings.NewReader(conf(root, ""))
	return cmd
}

// A plugin whose exec takes long counts from when the runtime made the process, and not from the
// program's first instruction: an attachment that was made in between is younger than the DEL.
func TestStartOfSlowExec(t *testing.T) {
	nettest.Need(t)
	root := t.TempDir()
	var s starts
	s.listen(t, root, 0)
	cmd := newDelete(root)
	cmd.SysProcAttr = &syscall.SysProcAttr{Ptrace: true} // it stops behind execve
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before := boottime.Now()
	must(t, cmd.Start())
	made := boottime.Now()
	nettest.Eventually(t, "something begins after it", func() bool { return boottime.Now() > made+int64(5*statTick) })
	must(t, syscall.PtraceDetach(cmd.Process.Pid))
	must(t, cmd.Wait())
	if len(s.began) != 1 || s.began[0] < before || s.began[0] > made+int64(statTick) {
		t.Errorf("made from %d to %d, it says %v", before, made, s.began)
	}
}

// The starts of verbs that run one after the other are in order, also within a tick of the
// kernel's, and no start is later than the verb itself.
func TestStartsInOrder(t *testing.T) {
	root := t.TempDir()
	var s starts
	s.listen(t, root, 0)
	last := int64(0)
	for i := range 30 {
		before := boottime.Now()
		if out, err := newDelete(root).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		at := s.began[i]
		if at <= last || at < before || at > boottime.Now() {
			t.Fatalf("run %d began at %d, after %d and the run before it at %d", i, at, before, last)
		}
		last = boottime.Now()
	}
}

// A shell becomes the last program that it runs. An ADD began after the DEL that the same
// shell has waited for.
func TestStartOfShellsLast(t *testing.T) {
	root := t.TempDir()
	var s starts
	s.listen(t, root, 3*statTick)
	must(t, newShell(t, root, "ADD", `CNI_COMMAND=DEL "$PLUGIN" <conf; exec "$PLUGIN" <conf`).Run())
	if len(s.began) != 2 || s.began[1] < s.began[0]+int64(3*statTick) {
		t.Errorf("they began at %v", s.began)
	}
}

// A wrapper waits for a child before it becomes the plugin. A DEL and a GC count from when the
// wrapper began: they spare pods that were attached since.
func TestStartOfWrapper(t *testing.T) {
	for _, verb := range []string{"DEL", "GC"} {
		t.Run(verb, func(t *testing.T) {
			root := t.TempDir()
			var s starts
			s.listen(t, root, 0)
			fifo := filepath.Join(root, "fifo")
			must(t, syscall.Mkfifo(fifo, 0o600))
			before := boottime.Now()
			cmd := newShell(t, root, verb, `cat conf >copy; read _ <fifo; exec "$PLUGIN" <copy`)
			must(t, cmd.Start())
			goOn, err := os.OpenFile(fifo, os.O_WRONLY, 0) // when the wrapper has waited for its child
			must(t, err)
			made := boottime.Now()
			nettest.Eventually(t, "something begins after it", func() bool { return boottime.Now() > made+int64(5*statTick) })
			must(t, goOn.Close())
			must(t, cmd.Wait())
			if len(s.began) != 1 || s.began[0] < before || s.began[0] > made+int64(statTick) {
				t.Errorf("made from %d to %d, it says %v", before, made, s.began)
			}
		})
	}
}

// newShell returns the command of a shell that becomes the plugin, with a verb's environment.
func newShell(t *testing.T, root, verb, script string) *exec.Cmd {
	t.Helper()
	must(t, os.WriteFile(filepath.Join(root, "conf"), []byte(conf(root, `"cni.dev/valid-attachments":[]`)), 0o600))
	cmd := exec.Command("sh", "-c", script)
	for k, v := range podEnv(verb) {
		cmd.Env = append(cmd.Env, k+"="+v)
	}
	cmd.Env = append(cmd.Env, "PLUGIN="+filepath.Join(bin, "berth-cni"), "PATH=/usr/bin:/bin")
	cmd.Dir, cmd.Stderr = root, os.Stderr
	return cmd
}

// FuzzBorn reads /proc/PID/stat. Anybody can choose the name in it.
func FuzzBorn(f *testing.F) {
	const good = "7 (berth-cni) R 1 7 7 0 -1 4194304 298 0 0 0 0 17 0 0 20 0 4 0 132535 1256550400 580"
	for _, stat := range []string{
		good, "", "7", "7 (a", "7 (a)", "7 (a) ", "7 () R", strings.Replace(good, "berth-cni", "a) (b c", 1), strings.Replace(good, "298 0 0 0", "298 76 2 1", 1),
		strings.Replace(good, "132535", "-1", 1), strings.Replace(good, "132535", "9223372036854775807", 1), strings.Replace(good, "132535", "922337203685477580", 1),
	} {
		f.Add(stat)
	}
	f.Fuzz(func(t *testing.T, stat string) {
		if end, _, ok := born(stat); (end > 0) != ok || end%int64(statTick) != 0 {
			t.Errorf("%d, %v", end, ok)
		}
	})
}

func TestBorn(t *testing.T) {
	const tail = " R 1 7 7 0 -1 4194304 298 %s 0 17 0 0 20 0 4 0 132535 1256550400 580"
	for _, test := range []struct {
		stat   string
		end    int64
		parent bool
		ok     bool
	}{
		{"7 (berth-cni)" + fmt.Sprintf(tail, "0 0 0"), 1325360000000, false, true},
		{"7 (a) R 1) (b)" + fmt.Sprintf(tail, "0 5 0"), 1325360000000, false, true}, // its own major faults are not children's
		{"7 (sh)" + fmt.Sprintf(tail, "76 0 0"), 1325360000000, true, true},
		{"7 (sh)" + fmt.Sprintf(tail, "0 0 1"), 1325360000000, true, true},
		{"7 (sh) R 1 7", 0, false, false},
	} {
		if end, parent, ok := born(test.stat); end != test.end || parent != test.parent || ok != test.ok {
			t.Errorf("%s: %d, %v, %v", test.stat, end, parent, ok)
		}
	}
}

func BenchmarkStartOf(b *testing.B) {
	now := boottime.Now()
	for b.Loop() {
		startOf(now)
	}
}

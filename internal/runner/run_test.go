package runner_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/runner"
	"github.com/berth-net/berth/internal/runner/client"
	"github.com/berth-net/berth/internal/runner/wire"
)

// A plugin has the variables of the request, and of the runner's own what is not meant for the runner
// alone; it has its own process group, the root as its folder, stdin, and does not ignore SIGPIPE.
func TestPluginSees(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "/nobody")
	t.Setenv("GOMEMLIMIT", "1GiB")
	t.Setenv("CNI_IFNAME", "stale")
	t.Setenv("HTTPS_PROXY", "proxy")
	w := start(t)
	w.script("see", `cat; echo; env; pwd; cut -d' ' -f1,5 /proc/$$/stat; grep SigIgn /proc/$$/status; echo words >&2`)
	req := w.request("see", "ADD", "pod")
	req.Env["CNI_ARGS"] = "A=b;C=d"
	req.Stdin = []byte(`{"name":"net"}`)
	a, err := w.client.Run(t.Context(), req)
	must(t, err)
	if a.Exit != 0 || a.Signal != "" || string(a.Stderr) != "words\n" || a.Path != filepath.Join(w.bin, "see") || a.Ran <= 0 || a.Printed != int64(len(a.Stdout)) {
		t.Errorf("%+v", a)
	}
	lines := strings.Split(string(a.Stdout), "\n")
	for _, want := range []string{`{"name":"net"}`, "CNI_COMMAND=ADD", "CNI_CONTAINERID=pod", "CNI_ARGS=A=b;C=d", "CNI_PATH=" + w.bin, "HTTPS_PROXY=proxy", "/"} {
		if !slices.Contains(lines, want) {
			t.Errorf("the plugin does not see %q, but:\n%s", want, a.Stdout)
		}
	}
	for _, line := range lines {
		for _, not := range []string{"NOTIFY_SOCKET", "GOMEMLIMIT", "CNI_IFNAME"} {
			if strings.HasPrefix(line, not) {
				t.Errorf("the plugin sees %s", line)
			}
		}
		var ignored uint64 // as a mask; whoever began the test may ignore some, too
		if n, _ := fmt.Sscanf(line, "SigIgn: %x", &ignored); n == 1 && ignored&(1<<(unix.SIGPIPE-1)) != 0 {
			t.Error("the plugin ignores SIGPIPE")
		}
		var pid, group int
		if n, _ := fmt.Sscanf(line, "%d %d", &pid, &group); n == 2 && pid != group {
			t.Errorf("process %d is in group %d", pid, group)
		}
	}
}

func TestHowPluginsEnd(t *testing.T) {
	w := newWorld(t)
	o := w.options()
	o.Output = 1000
	w.serve(o)
	w.script("fails", `echo '{"code":11}'; echo why >&2; exit 3`)
	w.script("signal", `kill -SEGV $$`)
	w.script("large", `head -c 10485760 /dev/zero; echo the end >&2`)
	w.script("wordy", `head -c 100000 /dev/zero >&2; printf last >&2`)
	w.script("deaf", `exec 0<&-; echo done`)
	for plugin, want := range map[string]string{
		"fails":  `exit 3 "" stdout 12 of 12, stderr 4 "why\n"`,
		"signal": `exit -1 "segmentation fault" stdout 0 of 0, stderr 0 ""`,
		"large":  `exit 0 "" stdout 1000 of 10485760, stderr 8 "the end\n"`,
		"wordy":  `exit 0 "" stdout 0 of 0, stderr 16384 "last"`,
		"deaf":   `exit 0 "" stdout 5 of 5, stderr 0 ""`,
	} {
		req := w.request(plugin, "DEL", "pod")
		req.Stdin = make([]byte, wire.MaxStdin) // more than a pipe holds
		a, err := w.client.Run(t.Context(), req)
		must(t, err)
		end := strings.TrimLeft(string(a.Stderr), "\x00")
		if got := fmt.Sprintf("exit %d %q stdout %d of %d, stderr %d %q", a.Exit, a.Signal, len(a.Stdout), a.Printed, len(a.Stderr), end); got != want {
			t.Errorf("%s: %s, want %s", plugin, got, want)
		}
	}
}

// A plugin whose time is over is killed with its group, whatever signals it ignores.
func TestTimeout(t *testing.T) {
	w := newWorld(t)
	over, asked := make(chan time.Time, 1), time.Duration(0)
	o := w.options()
	o.Patience(0, 0, nil, func(d time.Duration) <-chan time.Time {
		asked = d
		return over
	})
	w.serve(o)
	pids := w.fifo("pids")
	w.script("hangs", `trap '' TERM INT HUP; sleep 1000 & echo $$ $! >`+pids+`; echo some; while :; do wait; done`)
	end := w.begun(t.Context(), w.request("hangs", "ADD", "pod"))
	plugin, child, _ := strings.Cut(w.hear(pids), " ")
	over <- time.Time{}
	r := <-end
	must(t, r.err)
	if r.answer.Signal != "killed" || !r.answer.TimedOut || r.answer.Exit != -1 {
		t.Errorf("%+v", r.answer)
	}
	gone(t, plugin)
	gone(t, child)
	if !strings.Contains(w.said.String(), "ran out of time") {
		t.Errorf("the log says %s", &w.said)
	}
	must(t, w.shutdown(t.Context()))
	if asked != time.Minute {
		t.Errorf("the plugin has %v", asked)
	}
}

// A child that keeps the output open keeps no answer, and lives on: the plugin may have started a daemon.
func TestChildKeepsOutput(t *testing.T) {
	w := newWorld(t)
	o := w.options()
	o.Patience(50*time.Millisecond, 0, nil, nil)
	w.serve(o)
	w.script("parent", `sleep 1000 & echo $!`)
	pid := strings.TrimSpace(string(w.add("parent").Stdout))
	if !alive(pid) {
		t.Error("the child does not live")
	}
	must(t, kill(pid))
}

// When the client leaves, the plugin is killed, and a request that waits is not executed.
func TestClientLeaves(t *testing.T) {
	w := start(t)
	pids := w.fifo("pids")
	marker := filepath.Join(string(w.root), "marker")
	w.script("hangs", `echo $$ >`+pids+`; exec sleep 1000`)
	w.script("marks", `touch `+marker)
	w.script("nothing", ``)
	ctx, leave := context.WithCancel(t.Context())
	end := w.begun(ctx, w.request("hangs", "ADD", "pod"))
	pid := w.hear(pids)
	waits, stop := context.WithCancel(t.Context())
	behind := w.begun(waits, w.request("marks", "DEL", "pod"))
	nettest.Eventually(t, "the second request to wait", func() bool { return w.runner.Waiting() == 1 })
	stop()
	if r := <-behind; r.err == nil {
		t.Errorf("a request whose client left: %v", r)
	}
	nettest.Eventually(t, "the second request to leave", func() bool { return w.runner.Waiting() == 0 })
	leave()
	if r := <-end; r.err == nil {
		t.Errorf("an execution whose client left: %v", r)
	}
	gone(t, pid)
	_, err := w.client.Run(t.Context(), w.request("nothing", "DEL", "pod")) // the container has its turn again
	must(t, err)
	if _, err := os.Stat(marker); err == nil {
		t.Error("the plugin of a request whose client left before has run")
	}
}

// A plugin that somebody writes is tried again, a bounded number of times, and not once the client has left.
func TestBusy(t *testing.T) {
	for name, test := range map[string]struct {
		pause  func(try int, written func(), leave func()) bool
		pauses int
		want   string
	}{
		"written":     {func(try int, written, _ func()) bool { return try < 3 || call(written) }, 3, ""},
		"for ever":    {func(int, func(), func()) bool { return true }, runner.BusyPauses, "somebody writes its file"},
		"client left": {func(_ int, _, leave func()) bool { return !call(leave) }, 1, "context canceled"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.script("busy", `echo new`)
			f, err := os.OpenFile(filepath.Join(w.bin, "busy"), os.O_WRONLY, 0)
			must(t, err)
			written := sync.OnceFunc(func() { must(t, f.Close()) })
			defer written()
			ctx, leave := context.WithCancel(t.Context())
			defer leave()
			pauses := 0
			o := w.options()
			o.Patience(0, 0, func(context.Context, time.Duration) bool {
				pauses++
				return test.pause(pauses, written, leave)
			}, nil)
			w.serve(o)
			a, err := w.client.Run(ctx, w.request("busy", "ADD", "pod"))
			switch {
			case test.want == "" && (err != nil || string(a.Stdout) != "new\n"):
				t.Errorf("%+v, %v", a, err)
			case test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)):
				t.Errorf("%+v, %v, want %s", a, err, test.want)
			}
			must(t, w.shutdown(t.Context()))
			if pauses != test.pauses {
				t.Errorf("%d pauses, want %d", pauses, test.pauses)
			}
		})
	}
}

func call(f func()) bool {
	f()
	return true
}

// A plugin may be replaced while it runs.
func TestReplaced(t *testing.T) {
	w := start(t)
	begun, goOn := w.fifo("begun"), w.fifo("goOn")
	w.script("plugin", `echo $$ >`+begun+`; read x <`+goOn+`; echo old`)
	end := w.begun(t.Context(), w.request("plugin", "ADD", "pod"))
	w.hear(begun)
	must(t, os.WriteFile(filepath.Join(w.bin, "fresh"), []byte("#!/bin/sh\necho new\n"), 0o755), os.Rename(filepath.Join(w.bin, "fresh"), filepath.Join(w.bin, "plugin")))
	a, err := w.client.Run(t.Context(), w.request("plugin", "ADD", "other"))
	if err != nil || string(a.Stdout) != "new\n" {
		t.Errorf("the new one: %+v, %v", a, err)
	}
	w.tell(goOn)
	if r := <-end; r.err != nil || string(r.answer.Stdout) != "old\n" {
		t.Errorf("the old one: %v", r)
	}
}

func TestCannotRun(t *testing.T) {
	w := start(t)
	must(t, os.WriteFile(filepath.Join(w.bin, "plain"), []byte("text"), 0o644), os.WriteFile(filepath.Join(w.bin, "garbage"), []byte("text"), 0o755),
		os.WriteFile(filepath.Join(w.bin, "lost"), []byte("#!/nowhere/sh\n"), 0o755), os.Mkdir(filepath.Join(w.bin, "folder"), 0o755))
	for plugin, want := range map[string]string{
		"nothing": "nothing is not in " + w.bin,
		"folder":  "folder is not in " + w.bin,
		"plain":   "plain in " + w.bin + " is not executable",
		"garbage": "starting garbage of " + w.bin + ": its file is no program of this machine",
		"lost":    "starting lost of " + w.bin + ": its file or the interpreter that its file names is not there",
	} {
		a, err := w.client.Run(t.Context(), w.request(plugin, "ADD", "pod"))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %+v, %v, want %s", plugin, a, err, want)
		}
		if !errors.As(err, new(*client.UnstartedError)) {
			t.Errorf("%s: nobody hears that it was not executed: %T", plugin, err)
		}
	}
	left, err := os.ReadDir(w.root.Running())
	if err != nil || len(left) > 0 {
		t.Errorf("records that are left: %v, %v", left, err)
	}
}

// A folder that does not answer keeps those who need it, and nobody else.
func TestFolderHangs(t *testing.T) {
	nettest.Need(t)
	w := newWorld(t)
	hangs := t.TempDir()
	o := w.options()
	o.Folders = append(o.Folders, hangs)
	w.serve(o)
	w.script("plugin", `echo fine`)
	nettest.Hang(t, hangs)
	_, err := w.client.Find(t.Context(), "other", []string{hangs, w.bin})
	if err == nil || !strings.Contains(err.Error(), hangs+": the file system does not answer") {
		t.Errorf("the folder that hangs: %v", err)
	}
	if a := w.add("plugin"); string(a.Stdout) != "fine\n" {
		t.Errorf("the other folder: %+v", a)
	}
}

// A plugin that the kernel does not end keeps its container's turn, and nobody's place.
func TestLingers(t *testing.T) {
	w := newWorld(t)
	o := w.options()
	o.Patience(0, 10*time.Millisecond, nil, nil)
	o.Processes = 2 // one for others than deletions
	w.serve(o)
	pids := w.fifo("pids")
	w.script("hangs", `echo $$ >`+pids+`; exec sleep 1000`)
	w.script("fine", `echo fine`)
	ctx := t.Context()
	req := w.request("hangs", "ADD", "pod")
	req.Timeout = time.Minute
	ctx, leave := context.WithCancel(ctx)
	end := w.begun(ctx, req)
	letGo := keep(t, w.hear(pids)) // dead, it stays as it is until its tracer has seen that
	leave()
	<-end
	nettest.Eventually(t, "the runner's patience to end", func() bool { return strings.Contains(w.said.String(), "has not ended") })
	if a, err := w.client.Run(t.Context(), w.request("fine", "ADD", "other")); err != nil || string(a.Stdout) != "fine\n" {
		t.Errorf("another container: %+v, %v", a, err)
	}
	same := w.begun(t.Context(), w.request("fine", "DEL", "pod"))
	nettest.Eventually(t, "the same container to wait", func() bool { return w.runner.Waiting() == 1 })
	short, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := w.client.Run(short, w.request("fine", "DEL", "pod")); err == nil {
		t.Error("a second execution for the container")
	}
	letGo()
	if r := <-same; r.err != nil || string(r.answer.Stdout) != "fine\n" {
		t.Errorf("once it has ended: %v", r)
	}
}

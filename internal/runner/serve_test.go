package runner_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/cni"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/runner"
	"github.com/berth-net/berth/internal/runner/client"
	"github.com/berth-net/berth/internal/runner/wire"
)

// refusal is a request that is wrong, and what its refusal says.
type refusal struct {
	change func(*wire.Request)
	code   uint
	want   string
}

func env(name, value string) func(*wire.Request) {
	return func(r *wire.Request) { r.Env[name] = value }
}

func refusals() map[string]refusal {
	return map[string]refusal{
		"no type":       {func(r *wire.Request) { r.Type = "" }, cni.CodeConfig, `type is ""`},
		"a path":        {func(r *wire.Request) { r.Type = "../../bin/sh" }, cni.CodeConfig, `type is "../../bin/sh"`},
		"dots":          {func(r *wire.Request) { r.Type = ".." }, cni.CodeConfig, `type is ".."`},
		"a NUL":         {func(r *wire.Request) { r.Type = "a\x00b" }, cni.CodeConfig, "type is"},
		"a long type":   {func(r *wire.Request) { r.Type = strings.Repeat("t", 256) }, cni.CodeConfig, "type is"},
		"no folder":     {func(r *wire.Request) { r.Folders = nil }, cni.CodeConfig, "0 folders"},
		"many folders":  {func(r *wire.Request) { r.Folders = make([]string, 17) }, cni.CodeConfig, "17 folders"},
		"other folder":  {func(r *wire.Request) { r.Folders = append(r.Folders, "/tmp") }, cni.CodeConfig, `folder is "/tmp"; expected one of`},
		"folder below":  {func(r *wire.Request) { r.Folders[0] += "/below" }, cni.CodeConfig, "expected one of"},
		"folder above":  {func(r *wire.Request) { r.Folders[0] += "/.." }, cni.CodeConfig, "expected one of"},
		"other PATH":    {env("CNI_PATH", "/tmp"), cni.CodeConfig, `CNI_PATH is "/tmp"`},
		"a variable":    {env("LD_PRELOAD", "x"), cni.CodeConfig, `"LD_PRELOAD"`},
		"a NUL value":   {env("CNI_ARGS", "a\x00b"), cni.CodeEnv, "CNI_ARGS"},
		"a long value":  {env("CNI_ARGS", strings.Repeat("a", 16<<10+1)), cni.CodeEnv, "CNI_ARGS"},
		"no verb":       {env("CNI_COMMAND", ""), cni.CodeEnv, "CNI_COMMAND"},
		"wrong verb":    {env("CNI_COMMAND", "add"), cni.CodeEnv, "CNI_COMMAND"},
		"no container":  {env("CNI_CONTAINERID", ""), cni.CodeEnv, "CNI_CONTAINERID"},
		"bad container": {env("CNI_CONTAINERID", "../x"), cni.CodeEnv, "CNI_CONTAINERID"},
		"long stdin":    {func(r *wire.Request) { r.Stdin = make([]byte, wire.MaxStdin+1) }, cni.CodeConfig, "stdin has"},
		"huge stdin":    {func(r *wire.Request) { r.Stdin = make([]byte, wire.MaxBody) }, cni.CodeDecode, "too large"},
		"negative time": {func(r *wire.Request) { r.Timeout = -1 }, cni.CodeConfig, "timeout is"},
		"long time":     {func(r *wire.Request) { r.Timeout = wire.MaxTimeout + 1 }, cni.CodeConfig, "timeout is"},
	}
}

// A wrong request is refused with a number and with what is wrong, and runs nothing.
func TestBadInput(t *testing.T) {
	w := start(t)
	marker := filepath.Join(string(w.root), "marker")
	w.script("plugin", "touch "+marker)
	for name, test := range refusals() {
		req := w.request("plugin", "ADD", "pod")
		test.change(&req)
		_, err := w.client.Run(t.Context(), req)
		var e *api.Error
		if !errors.As(err, &e) || e.Code != test.code || !strings.Contains(err.Error(), test.want) || len(err.Error()) > 1000 {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := os.Stat(marker); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a plugin has run: %v", err)
	}
	if _, err := w.client.Find(t.Context(), "../sh", []string{w.bin}); err == nil || !strings.Contains(err.Error(), "type is") {
		t.Errorf("finding a path: %v", err)
	}
	for _, body := range []string{"", "{", "[]", `{"type":"a"} x`, `{"unknown":1}`, `{"timeout":"1s"}`} {
		if _, err := runner.Check([]string{w.bin}, []byte(body)); err == nil || err.Code != cni.CodeDecode {
			t.Errorf("%s: %v", body, err)
		}
	}
}

// Whatever a request says, what passes the checks is a file's name, in allowed folders.
func FuzzCheck(f *testing.F) {
	good := (&world{bin: "/opt/cni/bin"}).request("bridge", "ADD", "pod")
	for _, test := range refusals() {
		req := good
		req.Folders, req.Env = []string{"/opt/cni/bin"}, map[string]string{"CNI_COMMAND": "ADD", "CNI_CONTAINERID": "pod"}
		test.change(&req)
		raw, err := json.Marshal(req)
		must(f, err)
		if len(raw) < 1<<16 {
			f.Add(raw)
		}
	}
	raw, err := json.Marshal(good)
	must(f, err)
	f.Add(raw)
	f.Fuzz(func(t *testing.T, raw []byte) {
		req, bad := runner.Check([]string{"/opt/cni/bin", "/usr/libexec/cni"}, raw)
		if bad != nil {
			if bad.Code == 0 || len(bad.Error()) > 2000 {
				t.Errorf("refused with %d bytes: %v", len(bad.Error()), bad)
			}
			return
		}
		for _, folder := range req.Folders {
			if path := filepath.Join(folder, req.Type); filepath.Dir(path) != "/opt/cni/bin" && filepath.Dir(path) != "/usr/libexec/cni" {
				t.Errorf("%q passes", path)
			}
		}
		if len(req.Stdin) > wire.MaxStdin || req.Timeout <= 0 || strings.Contains(fmt.Sprint(req.Env), "\x00") {
			t.Errorf("%+v passes", req)
		}
	})
}

// The socket is root's and the runner's user's alone, and comes back if somebody removes it.
func TestSocket(t *testing.T) {
	w := start(t)
	w.script("fine", "echo fine")
	info, err := os.Lstat(w.root.RunnerSocket())
	if err != nil || info.Mode() != fs.ModeSocket|0o600 {
		t.Errorf("%v, %v", info, err)
	}
	must(t, os.Remove(w.root.RunnerSocket()))
	fresh := client.New(w.root.RunnerSocket())
	defer fresh.Close()
	if _, err := fresh.Run(t.Context(), w.request("fine", "ADD", "pod")); !errors.Is(err, client.ErrAway) || !errors.As(err, new(*client.UnstartedError)) {
		t.Errorf("without a socket: %v", err)
	}
	nettest.Eventually(t, "the socket to come back", func() bool {
		_, err := fresh.Run(t.Context(), w.request("fine", "ADD", "pod"))
		return err == nil
	})
}

// At its end the runner waits for plugins that run, refuses those that wait, and leaves no socket.
func TestShutdown(t *testing.T) {
	w := start(t)
	begun, goOn := w.fifo("begun"), w.fifo("goOn")
	w.script("slow", `echo $$ >`+begun+`; read x <`+goOn+`; echo done`)
	slow := w.begun(t.Context(), w.request("slow", "ADD", "pod"))
	w.hear(begun)
	waits := w.begun(t.Context(), w.request("slow", "DEL", "pod"))
	nettest.Eventually(t, "the second request to wait", func() bool { return w.runner.Waiting() == 1 })
	ended := make(chan error)
	go func() { ended <- w.shutdown(t.Context()) }()
	if r := <-waits; r.err == nil || !strings.Contains(r.err.Error(), "is stopping") {
		t.Errorf("a request that waits: %v", r)
	}
	w.tell(goOn)
	if r := <-slow; r.err != nil || string(r.answer.Stdout) != "done\n" {
		t.Errorf("a plugin that runs: %v", r)
	}
	must(t, <-ended)
	if _, err := os.Lstat(w.root.RunnerSocket()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the socket is left: %v", err)
	}
}

// A plugin that runs for too long at the runner's end is killed.
func TestShutdownKills(t *testing.T) {
	w := start(t)
	begun := w.fifo("begun")
	w.script("hangs", `echo $$ >`+begun+`; exec sleep 1000`)
	hangs := w.begun(t.Context(), w.request("hangs", "ADD", "pod"))
	pid := w.hear(begun)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := w.shutdown(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("the end: %v", err)
	}
	if r := <-hangs; r.err == nil || !strings.Contains(r.err.Error(), "is stopping") {
		t.Errorf("the plugin: %v", r)
	}
	gone(t, pid)
}

// Plugins run in the mount namespace that the runner is given, and are looked for there; the runner
// itself stays where it is.
func TestMountNamespace(t *testing.T) {
	nettest.Need(t)
	w := newWorld(t)
	must(t, os.Symlink(w.bin, filepath.Join(string(w.root), "link")))
	ready := w.fifo("ready")
	host := exec.Command("sh", "-c", `mount -t tmpfs host `+w.bin+` && printf '#!/bin/sh\nreadlink /proc/self/ns/mnt; pwd; ls `+w.bin+`\n' >`+w.bin+`/inside && chmod 755 `+w.bin+`/inside && echo ready >`+ready+` && exec sleep 1000`)
	host.SysProcAttr = &unix.SysProcAttr{Cloneflags: unix.CLONE_NEWNS, Pdeathsig: unix.SIGKILL}
	host.Stderr = t.Output()
	must(t, host.Start())
	defer func() { _ = host.Process.Kill(); _ = host.Wait() }()
	w.hear(ready)
	o := w.options()
	o.Mount = fmt.Sprintf("/proc/%d/ns/mnt", host.Process.Pid)
	w.serve(o)
	theirs, err := os.Readlink(o.Mount)
	must(t, err)
	if a := w.add("inside"); string(a.Stdout) != theirs+"\n/\ninside\n" {
		t.Errorf("the plugin says %q, and the namespace is %s", a.Stdout, theirs)
	}
	if _, err := os.Stat(filepath.Join(w.bin, "inside")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the test sees the plugin, too: %v", err)
	}
	o.Mount = "/proc/self/ns/nothing"
	o.Root = newWorld(t).root
	if _, err := runner.New(o); err == nil || !strings.Contains(err.Error(), "opening the mount namespace") {
		t.Errorf("no namespace: %v", err)
	}
}

// multus #1346: processes without a bound took all memory.
// Here as many plugins run as there are places, and no more: each says so and waits for the test.
func TestProcessesAtOnce(t *testing.T) {
	w := start(t) // 4 places, and 2 more for deletions
	begun, goOn := w.fifo("begun"), w.fifo("goOn")
	keepOpen, err := os.OpenFile(begun, os.O_RDWR, 0)
	must(t, err)
	defer keepOpen.Close()
	hold, err := os.OpenFile(goOn, os.O_RDWR, 0)
	must(t, err)
	defer hold.Close()
	w.script("slow", `echo $CNI_COMMAND >`+begun+`; read x <`+goOn+`; echo done`)
	var ends []<-chan result
	for i := range 7 {
		ends = append(ends, w.begun(t.Context(), w.request("slow", "ADD", fmt.Sprintf("add%d", i))))
	}
	heard := ""
	read := func(lines int) {
		buf := make([]byte, 4*lines)
		for at := 0; at < len(buf); {
			n, err := keepOpen.Read(buf[at:])
			must(t, err)
			at += n
		}
		heard += string(buf)
	}
	read(4)
	nettest.Eventually(t, "three ADDs to wait", func() bool { return w.runner.Waiting() == 3 })
	for i := range 4 {
		ends = append(ends, w.begun(t.Context(), w.request("slow", "DEL", fmt.Sprintf("del%d", i))))
	}
	read(2)
	nettest.Eventually(t, "two DELs to wait", func() bool { return w.runner.Waiting() == 5 })
	if heard != "ADD\nADD\nADD\nADD\nDEL\nDEL\n" {
		t.Errorf("run do %q", heard)
	}
	_, err = hold.WriteString(strings.Repeat("go\n", len(ends)))
	must(t, err)
	read(5)
	for _, end := range ends {
		if r := <-end; r.err != nil || string(r.answer.Stdout) != "done\n" {
			t.Error(r)
		}
	}
}

package client_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/root"
	"github.com/berth-net/berth/internal/runner"
	"github.com/berth-net/berth/internal/runner/client"
)

var must = nettest.Must

var _ invoke.Exec = (*client.Exec)(nil)

// prints is the result that the tests' plugin prints.
const prints = `{"cniVersion":"1.0.0","interfaces":[{"name":"eth0"}],"dns":{}}`

// serve serves a folder of plugins until the test ends, and returns both.
func serve(t testing.TB) (*client.Exec, string) {
	t.Helper()
	return serveAt(t, root.Dir(t.TempDir()))
}

func serveAt(t testing.TB, dir root.Dir) (*client.Exec, string) {
	t.Helper()
	bin := t.TempDir()
	r, err := runner.New(runner.Options{Root: dir, Folders: []string{bin}, Output: 1000, Log: slog.New(slog.DiscardHandler)})
	must(t, err)
	ended := make(chan error, 1)
	go func() { ended <- r.Serve() }()
	c := client.New(dir.RunnerSocket())
	t.Cleanup(func() {
		c.Close()
		must(t, r.Shutdown(context.Background()), <-ended)
	})
	return &client.Exec{Client: c}, bin
}

func script(t testing.TB, bin, name, text string) {
	t.Helper()
	must(t, os.WriteFile(filepath.Join(bin, name), []byte("#!/bin/sh\n"+text+"\n"), 0o755))
}

// libcni runs a list of plugins through the runner: ADD, CHECK, DEL, STATUS, GC and VERSION.
func TestLibcni(t *testing.T) {
	exec, bin := serve(t)
	script(t, bin, "plugin", `echo $CNI_COMMAND $CNI_CONTAINERID $CNI_IFNAME $CNI_ARGS >>`+bin+`/calls
case $CNI_COMMAND in
ADD) echo '`+prints+`';;
VERSION) echo '{"cniVersion":"1.1.0","supportedVersions":["0.4.0","1.0.0","1.1.0"]}';;
esac`)
	list, err := libcni.NetworkConfFromBytes([]byte(`{"cniVersion":"1.1.0","name":"net","plugins":[{"type":"plugin"}]}`))
	must(t, err)
	cni := libcni.NewCNIConfigWithCacheDir([]string{bin}, t.TempDir(), exec)
	rt := &libcni.RuntimeConf{ContainerID: "pod", NetNS: "/proc/1/ns/net", IfName: "eth0", Args: [][2]string{{"A", "b"}}}
	ctx := t.Context()
	result, err := cni.AddNetworkList(ctx, list, rt)
	must(t, err)
	if got := result.Version(); got != "1.0.0" {
		t.Errorf("the result is of version %s", got)
	}
	must(t, cni.CheckNetworkList(ctx, list, rt), cni.DelNetworkList(ctx, list, rt), cni.GetStatusNetworkList(ctx, list), cni.GCNetworkList(ctx, list, &libcni.GCArgs{}))
	_, err = cni.ValidateNetworkList(ctx, list)
	must(t, err)
	calls, err := os.ReadFile(filepath.Join(bin, "calls"))
	must(t, err)
	want := "ADD pod eth0 A=b\nCHECK pod eth0 A=b\nDEL pod eth0 A=b\nSTATUS\nGC\nVERSION\n"
	if got := strings.ReplaceAll(string(calls), " dummy", ""); strings.Join(strings.Fields(got), " ") != strings.Join(strings.Fields(want), " ") {
		t.Errorf("the plugin was called so:\n%s", calls)
	}
}

// How plugins fail is a types.Error, as it is with libcni itself: the plugin's own, or one that says what happened.
func TestFailures(t *testing.T) {
	exec, bin := serve(t)
	for name, test := range map[string]struct {
		script, verb string
		want         types.Error
	}{
		"own error":      {`echo '{"code":11,"msg":"later","details":"busy"}'; echo noise >&2; exit 1`, "ADD", types.Error{Code: 11, Msg: "later", Details: "busy"}},
		"garbage":        {`echo garbage; echo why >&2; exit 2`, "ADD", types.Error{Code: 999, Msg: `plugin plugin (ADD) failed with exit status 2 and printed no error but 8 bytes: "garbage\n"`, Details: "stderr: why"}},
		"other JSON":     {`echo '{"a":1}'; exit 2`, "ADD", types.Error{Code: 999, Msg: `plugin plugin (ADD) failed with exit status 2 and printed no error but 8 bytes: "{\"a\":1}\n"`}},
		"silence":        {`echo panic: oh >&2; exit 2`, "DEL", types.Error{Code: 999, Msg: "plugin plugin (DEL) failed with exit status 2 and printed no error", Details: "stderr: panic: oh"}},
		"a signal":       {`kill -SEGV $$`, "ADD", types.Error{Code: 999, Msg: "plugin plugin (ADD) was ended by a signal: segmentation fault"}},
		"10 MiB":         {`head -c 10485760 /dev/zero`, "ADD", types.Error{Code: 999, Msg: "plugin plugin (ADD) printed 10485760 bytes; expected at most 1000"}},
		"10 MiB in DEL":  {`head -c 10485760 /dev/zero`, "DEL", types.Error{}},
		"10 MiB, failed": {`printf '{"code":1}'; head -c 10485760 /dev/zero; exit 1`, "DEL", types.Error{Code: 999, Msg: "plugin plugin (DEL) failed with exit status 1 and printed no error but 10485770 bytes"}},
		"time is over":   {`exec sleep 1000`, "ADD", types.Error{Code: 999, Msg: "plugin plugin (ADD) did not end within"}},
	} {
		script(t, bin, "plugin", test.script)
		exec.Timeout = time.Minute
		if name == "time is over" {
			exec.Timeout = 10 * time.Millisecond
		}
		out, err := exec.ExecPlugin(t.Context(), filepath.Join(bin, "plugin"), nil, []string{"CNI_COMMAND=" + test.verb, "CNI_CONTAINERID=pod"})
		var e *types.Error
		switch {
		case test.want == types.Error{}:
			must(t, err)
		case !errors.As(err, &e) || e.Code != test.want.Code || !strings.HasPrefix(e.Msg, test.want.Msg) || e.Details != test.want.Details || len(e.Msg) > 2000:
			t.Errorf("%s: %q, %v", name, out, err)
		}
	}
}

// What the runner refuses is the runner's own error, and a runner that is away is ErrAway.
func TestRefused(t *testing.T) {
	exec, bin := serve(t)
	if _, err := exec.FindInPath("plugin", []string{bin}); err == nil || !strings.Contains(err.Error(), "plugin is not in "+bin) {
		t.Errorf("what is not there: %v", err)
	}
	script(t, bin, "plugin", "echo")
	if path, err := exec.FindInPath("plugin", []string{bin}); err != nil || path != filepath.Join(bin, "plugin") {
		t.Errorf("found at %q, %v", path, err)
	}
	if _, err := exec.FindInPath("../bin/plugin", []string{bin}); err == nil {
		t.Error("a path is found")
	}
	if _, err := exec.ExecPlugin(t.Context(), "/bin/sh", nil, []string{"CNI_COMMAND=VERSION"}); err == nil || !strings.Contains(err.Error(), `folder is "/bin"`) {
		t.Errorf("another folder: %v", err)
	}
	away := &client.Exec{Client: client.New(filepath.Join(t.TempDir(), strings.Repeat("long", 40), "runner.sock"))}
	if _, err := away.FindInPath("plugin", []string{bin}); !errors.Is(err, client.ErrAway) {
		t.Errorf("no runner: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := exec.ExecPlugin(ctx, filepath.Join(bin, "plugin"), nil, []string{"CNI_COMMAND=VERSION"}); !errors.Is(err, context.Canceled) {
		t.Errorf("a context that has ended: %v", err)
	}
}

// What plugins write to stderr when they succeed goes to Stderr.
func TestStderr(t *testing.T) {
	exec, bin := serve(t)
	var said strings.Builder
	exec.Stderr = &said
	script(t, bin, "plugin", `echo words >&2; cat`)
	out, err := exec.ExecPlugin(t.Context(), filepath.Join(bin, "plugin"), []byte("stdin"), []string{"CNI_COMMAND=STATUS", "CNI_COMMAND=VERSION", "OTHER=1", "odd"})
	if err != nil || string(out) != "stdin" || said.String() != "words\n" {
		t.Errorf("%q, %v, stderr %q", out, err, said.String())
	}
}

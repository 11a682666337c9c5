package main

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/boottime"
	"github.com/berth-net/berth/internal/kernel/ns"
)

// podEnv is the environment of a verb about a pod.
func podEnv(command string) map[string]string {
	return map[string]string{"CNI_COMMAND": command, "CNI_CONTAINERID": "c1", "CNI_IFNAME": "eth0", "CNI_NETNS": "/proc/self/ns/net"}
}

// execute runs the built plugin, and returns what it prints, and the code of the error that it
// prints; code is 0 if the plugin succeeds.
func execute(t testing.TB, env map[string]string, stdin io.Reader) (stdout string, code uint) {
	t.Helper()
	cmd := exec.Command(filepath.Join(bin, "berth-cni"))
	cmd.Env = []string{}
	for k, v := range env {
		cmd.Env = append(cmd.Env, k+"="+v)
	}
	cmd.Stdin = stdin
	var errors bytes.Buffer
	cmd.Stderr = &errors
	out, err := cmd.Output()
	if errors.Len() > 0 {
		t.Errorf("stderr: %s", errors.String())
	}
	if err == nil {
		return string(out), 0
	}
	return string(out), failure(t, out)
}

// failure returns the code of an error that the plugin printed.
func failure(t testing.TB, out []byte) uint {
	t.Helper()
	var e api.Error
	if err := json.Unmarshal(out, &e); err != nil || e.Code == 0 || e.Msg == "" || e.CNIVersion == "" {
		t.Fatalf("not an error: %q, %v", out, err)
	}
	return e.Code
}

// start starts an agent at a root.
func start(t testing.TB, root string, h http.HandlerFunc) {
	t.Helper()
	a := &agent{root: root}
	must(t, a.startWith(h))
	t.Cleanup(a.stop)
}

// The request of ADD has the form of the API's types, and leads the agent to the same
// namespace, also below a root that is too long for a socket's address.
func TestAddRequest(t *testing.T) {
	for _, dir := range []string{"r", strings.Repeat("long/", 40)} {
		root := filepath.Join(t.TempDir(), dir)
		var got api.AddRequest
		start(t, root, func(w http.ResponseWriter, r *http.Request) {
			d := json.NewDecoder(r.Body)
			d.DisallowUnknownFields()
			if err := d.Decode(&got); err != nil {
				t.Error(err)
			}
			io.WriteString(w, "{}")
		})
		netns := filepath.Join("/proc", "self", "ns", "net")
		self, err := ns.Open(netns)
		must(t, err)
		defer self.Close()
		config := conf(root, ` "dns" : {"search":["\u00e9"]}`)
		if out, code := execute(t, podEnv("ADD"), strings.NewReader(config)); code != 0 || out != "{}" {
			t.Fatalf("code %d: %s", code, out)
		}
		want := api.AddRequest{ContainerID: "c1", Ifname: "eth0", Netns: api.Netns(self.Ref()), Config: json.RawMessage(config)}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("got  %+v\nwant %+v", got, want)
		}
	}
}

func TestStdinTooLarge(t *testing.T) {
	root := t.TempDir()
	start(t, root, func(w http.ResponseWriter, r *http.Request) { t.Error("the agent is asked") })
	blanks := strings.Repeat(" ", api.MaxBody)
	for name, config := range map[string]string{
		"longer than a body": conf(root, "") + blanks,
		"with the rest":      conf(root, "") + blanks[:api.MaxBody-len(conf(root, ""))],
	} {
		if out, code := execute(t, podEnv("ADD"), strings.NewReader(config)); code != 7 || !strings.Contains(out, "too large") {
			t.Errorf("%s: code %d: %s", name, code, out)
		}
	}
}

// The plugin stops reading input that does not end (CVE-2022-31030).
func TestStdinEndless(t *testing.T) {
	endless := io.LimitReader(zeros{}, 64*api.MaxBody).(*io.LimitedReader)
	env := podEnv("DEL")
	status, out, _ := inside(t, env, endless, false)
	if read := 64*api.MaxBody - endless.N; status != 1 || failure(t, []byte(out)) != 7 || read > 2*api.MaxBody {
		t.Errorf("%d %s after %d bytes", status, out, read)
	}
	// The plugin says first what is wrong with the environment, all the same.
	env["CNI_IFNAME"] = ""
	if _, out, _ := inside(t, env, endless, false); failure(t, []byte(out)) != 4 {
		t.Error(out)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func TestAnswerSizes(t *testing.T) {
	root := t.TempDir()
	for size, want := range map[int]uint{4096: 0, api.MaxBody: 0, api.MaxBody + 1: 11, 8 * api.MaxBody: 11} {
		body := `{"x":"` + strings.Repeat("x", size-8) + `"}`
		func() {
			a := &agent{root: root}
			must(t, a.start())
			defer a.stop()
			a.answer("200", body)
			out, code := execute(t, podEnv("ADD"), strings.NewReader(conf(root, "")))
			if code != want || code == 0 && out != body {
				t.Errorf("%d bytes: code %d, %d bytes", size, code, len(out))
			}
		}()
	}
}

// inside runs the plugin in this process, with little of its time for the request left.
func inside(t *testing.T, env map[string]string, stdin io.Reader, typed bool) (status int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	v := verbs[env["CNI_COMMAND"]]
	p := &plugin{
		startOf: func(int64) (int64, bool) { return boottime.Now(), false },
		began:   boottime.Now() - int64(v.limit-v.reserve) + int64(200*time.Millisecond),
		getenv:  func(name string) string { return env[name] },
		stdin:   func(p []byte, deadline int64) (int, error) { return stdin.Read(p) },
		typed:   typed,
		stdout:  &out,
		stderr:  &errs,
	}
	status = p.run()
	return status, out.String(), errs.String()
}

// An agent that hangs is as good as none (aws, from source: calls of the agent
// had no deadline).
func TestHang(t *testing.T) {
	root := t.TempDir()
	start(t, root, func(w http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	for command, want := range map[string]uint{"ADD": 11, "CHECK": 11, "GC": 11, "STATUS": 50} {
		status, out, _ := inside(t, podEnv(command), strings.NewReader(conf(root, `"cni.dev/valid-attachments":[]`)), false)
		if status != 1 || failure(t, []byte(out)) != want || !strings.Contains(out, "the deadline passed") {
			t.Errorf("%s: %d %s", command, status, out)
		}
	}
	status, out, _ := inside(t, podEnv("DEL"), strings.NewReader(conf(root, "")), false)
	all, err := queued(root)
	if status != 0 || out != "" || err != nil || len(all) != 1 || !strings.Contains(all[0].Reason, "the deadline passed") {
		t.Errorf("DEL: %d %s; queued are %+v, %v", status, out, all, err)
	}
}

// The plugin also gives up on a stdin that does not end in time.
func TestStdinHangs(t *testing.T) {
	r, w, err := os.Pipe()
	must(t, err)
	defer r.Close()
	defer w.Close()
	io.WriteString(w, `{"cniVersion":`)
	var out bytes.Buffer
	p := mainPlugin(int(r.Fd()))
	p.began -= int64(verbs["DEL"].limit) - int64(100*time.Millisecond)
	p.getenv = func(name string) string { return podEnv("DEL")[name] }
	p.stdout = &out
	if status := p.run(); status != 1 || failure(t, out.Bytes()) != 5 || !strings.Contains(out.String(), "the deadline passed, after 14 bytes") {
		t.Errorf("%d %s", status, out.String())
	}
}

// At a terminal the plugin says what it is, whatever the environment.
func TestTerminal(t *testing.T) {
	for command, want := range map[string]struct {
		status        int
		stdout, about bool
	}{
		"":        {0, false, true},
		"VERSION": {0, true, false},
		"STATUS":  {1, true, true}, // nothing typed is no configuration
	} {
		status, out, errs := inside(t, map[string]string{"CNI_COMMAND": command}, strings.NewReader(""), true)
		if status != want.status || (out != "") != want.stdout || strings.Contains(errs, "CNI plugin berth-cni") != want.about {
			t.Errorf("%q: %d, %q, %q", command, status, out, errs)
		}
	}
}

// The plugin fails if it cannot print its answer.
func TestStdoutBroken(t *testing.T) {
	p := &plugin{
		getenv: func(name string) string { return map[string]string{"CNI_COMMAND": "VERSION"}[name] },
		typed:  true, stdout: broken{}, stderr: io.Discard,
	}
	if status := p.run(); status != 1 {
		t.Errorf("status %d", status)
	}
}

type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

// Only ADD waits for an agent that is away. DEL does without an agent, and a runtime that asks
// for STATUS or CHECK wants to know the present state.
func TestOnlyAddAwaits(t *testing.T) {
	for name, v := range verbs {
		if v.awaits != (name == "ADD") {
			t.Errorf("%s awaits an agent: %t", name, v.awaits)
		}
	}
}

// STATUS asks for the pool alone, unless the configuration names networks that other plugins may make: then the agent gets all of it.
func TestStatusRequest(t *testing.T) {
	root := t.TempDir()
	var got string
	start(t, root, func(w http.ResponseWriter, r *http.Request) {
		raw, _ := io.ReadAll(r.Body)
		got = r.Method + " " + r.URL.String() + " " + string(raw)
		w.WriteHeader(http.StatusOK)
	})
	for keys, want := range map[string]string{
		``:           "GET /v1/status ",
		`"pool":"p"`: "GET /v1/status?pool=p ",
		`"defaultNetworks":null,"pool":"p","namespaceIsolation":true`: "GET /v1/status?pool=p ",
		`"defaultNetworks":["a"],"pool":"p"`:                          "POST /v1/status ",
		`"delegates":[{}]`:                                            "POST /v1/status ",
		`"clusterNetwork":"a"`:                                        "POST /v1/status ",
		`"ipam":{"type":"host-local"}`:                                "POST /v1/status ",
		`"ipam":{},"pool":"p"`:                                        "GET /v1/status?pool=p ",
		`"readinessindicatorfile":"/a"`:                               "POST /v1/status ",
	} {
		stdin := conf(root, keys)
		if strings.HasPrefix(want, "POST") {
			want += `{"config":` + stdin + `}`
		}
		if status, out, _ := inside(t, podEnv("STATUS"), strings.NewReader(stdin), false); status != 0 || out != "" || got != want {
			t.Errorf("%s: %d %s; the agent was asked\n%s\nwant\n%s", keys, status, out, got, want)
		}
	}
}

package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/boottime"
	"github.com/berth-net/berth/internal/cni"
	"github.com/berth-net/berth/internal/daemon/server"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/routes/routestest"
)

// update makes TestGolden write the commands' output to testdata/golden, so that the
// difference can be looked at: UPDATE=1 go test ./internal/cli -run Golden
var update = os.Getenv("UPDATE") == "1"

// run runs the command on an agent of fake verbs, at a fixed time.
func run(a *routestest.Agent, args ...string) (stdout, stderr string, code int) {
	var out, errs strings.Builder
	app := &app{stdout: &out, stderr: &errs, patience: time.Minute, now: func() time.Time { return time.Date(2026, 1, 2, 5, 4, 5, 0, time.UTC) }}
	code = app.run(context.Background(), append([]string{"--root", string(a.Dir)}, args...))
	return out.String(), errs.String(), code
}

// The output for answers that a real agent gives seldom: everything that can be owed, and
// every sort of finding.
func TestGolden(t *testing.T) {
	a := routestest.Start(t, &routestest.Verbs{DeletedOwed: 1})
	a.Open()
	web := routestest.Attachment("aaaaaaaaaa", "c1")
	coming := routestest.Attachment("bbbbbbbbbb", "c2")
	coming.State, coming.Owed, coming.Releasing, coming.Pod = "attaching", nil, nil, nil
	a.Verbs.Put(web, coming)
	for _, c := range []struct {
		name string
		args []string
		code int
	}{
		{"status", []string{"status"}, 0},
		{"attachments", []string{"attachments"}, 0},
		{"wide", []string{"at", "-o", "wide"}, 0},
		{"show", []string{"show", "c1"}, 0},
		{"show.gone", []string{"show", "c0"}, 0},
		{"show.gone.json", []string{"show", "c0", "-o", "json"}, 0},
		{"history", []string{"history"}, 0},
		{"history.wide", []string{"history", "-o", "wide", "-n", "2"}, 0},
		{"history.pod", []string{"history", "default/web-0"}, 0},
		{"history.at", []string{"history", "--address", "10.88.0.7", "--at", "03:04"}, 0},
		{"history.json", []string{"history", "--since", "2h", "--container", "c0", "-o", "json"}, 0},
		{"audit", []string{"audit"}, 1},
		{"check", []string{"check", "c1"}, 1},
		{"pools", []string{"pools"}, 0},
		{"ledger", []string{"ledger"}, 0},
		{"health", []string{"health"}, 1},
		{"health.json", []string{"health", "-o", "json"}, 1},
		{"owed", []string{"owed"}, 0},
		{"owed.wide", []string{"owed", "-o", "wide"}, 0},
		{"owed.json", []string{"owed", "-o", "json"}, 0},
		{"owed.retry", []string{"owed", "retry"}, 0},
		{"owed.retry.some", []string{"owed", "retry", "default/web-0", "nnnn"}, 0},
		{"owed.retry.json", []string{"owed", "retry", "c1", "-o", "json"}, 0},
		{"gc.dry", []string{"gc", "--network", "net", "--keep", "c2", "--dry-run"}, 0},
		{"gc", []string{"gc", "--network", "net", "--all"}, 0},
		{"gc.json", []string{"gc", "--network", "net", "--all", "-o", "json"}, 0},
		{"adopt", []string{"adopt"}, 1},
		{"adopt.dry", []string{"adopt", "--dry-run"}, 1},
		{"adopt.json", []string{"adopt", "-o", "json"}, 1},
		{"audit.pods", []string{"audit", "--pods"}, 1},
		{"status.json", []string{"status", "-o", "json"}, 0},
		{"audit.json", []string{"audit", "-o", "json"}, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			out, errs, code := run(a, c.args...)
			if code != c.code || errs != "" {
				t.Errorf("exit code %d, not %d; it complains %q", code, c.code, errs)
			}
			file := filepath.Join("testdata/golden", c.name)
			if update {
				must(t, os.WriteFile(file, []byte(out), 0o644))
			}
			want, err := os.ReadFile(file)
			must(t, err)
			if diff := cmp.Diff(string(want), out); diff != "" {
				t.Errorf("it prints something else (-want +got):\n%s", diff)
			}
		})
	}
}

// `berth owed retry` tries the owners that its arguments name, and refuses arguments that
// name none.
func TestOwedRetry(t *testing.T) {
	var asked []hold.ID
	a := routestest.Start(t, &routestest.Verbs{Retried: func(ids []hold.ID) { asked = ids }, Unreadable: "input/output error"})
	a.Open()
	a.Verbs.Put(routestest.Attachment("aaaaaaaaaa", "c1"), routestest.Attachment("bbbbbbbbbb", "c2c2c2c2"))
	for args, want := range map[string]string{
		"":                         "[]",
		"aaaaaaaaaa":               "[aaaaaaaaaa]",
		"c1":                       "[aaaaaaaaaa]",
		"c2c2":                     "[bbbbbbbbbb]",
		"web-0":                    "[aaaaaaaaaa bbbbbbbbbb]",
		"bbbb aaaaaaaaaa c1":       "[aaaaaaaaaa bbbbbbbbbb]",
		"nnnnnnnnnn default/web-0": "[aaaaaaaaaa bbbbbbbbbb nnnnnnnnnn]",
	} {
		asked = nil
		out, errs, code := run(a, append([]string{"owed", "retry"}, strings.Fields(args)...)...)
		if got := fmt.Sprint(asked); code != 0 || errs != "" || got != want {
			t.Errorf("%q: exit code %d, %q, asked for %s, want %s\n%s", args, code, errs, got, want, out)
		}
	}
	for _, arg := range []string{"nix", "c2c", ""} {
		asked = []hold.ID{"none"}
		_, errs, code := run(a, "owed", "retry", arg)
		if code != 1 || !strings.Contains(errs, "owes nothing; see `berth owed`") || asked[0] != "none" {
			t.Errorf("%q: exit code %d, %q", arg, code, errs)
		}
	}
	if _, errs, code := run(a, "owed"); code != 0 || errs != "berth: this list of queued deletions is incomplete: input/output error\n" {
		t.Errorf("exit code %d, %q", code, errs)
	}
}

// `berth status` exits with 0 exactly when the agent serves requests.
func TestStatus(t *testing.T) {
	a := routestest.Start(t, &routestest.Verbs{})
	out, _, code := run(a, "status")
	if code != 1 || !strings.Contains(out, "restoring what its ledger says; requests wait") {
		t.Errorf("while it restores: exit code %d\n%s", code, out)
	}
	a.Open()
	out, _, code = run(a, "status")
	if code != 0 || !strings.Contains(out, "serving, version v0, pid 1, started ") {
		t.Errorf("when it serves: exit code %d\n%s", code, out)
	}
	if !strings.Contains(out, "\noverlaps      pool default: 10.88.0.0/16 overlaps the address 10.88.0.1/24 of cni0\naddresses     pods of this node get no addresses of the CIDRs that the cluster means for them: 10.244.1.0/24 overlaps") ||
		!strings.Contains(out, "\nexhausted     pool default has no free IPv4 address\n") {
		t.Errorf("with a full pool:\n%s", out)
	}
	a.Verbs.Hook = func(context.Context, string, server.When) error {
		return cni.Errorf(cni.CodeNotAvailable, "pool exhausted", "none of 2 addresses is free")
	}
	out, _, code = run(a, "status")
	if code != 0 || !strings.Contains(out, "attach pods: pool exhausted: none of 2 addresses is free\n") {
		t.Errorf("when it cannot attach: exit code %d\n%s", code, out)
	}
	a.Verbs.Hook = func(context.Context, string, server.When) error { return errors.New("broken") }
	_, errs, code := run(a, "status")
	if code != 1 || !strings.HasPrefix(errs, "berth: ") || strings.Count(errs, "\n") != 1 {
		t.Errorf("when it cannot tell: exit code %d, %q", code, errs)
	}
}

// hanging returns an agent that answers nothing until the test ends.
func hanging(t *testing.T) *routestest.Agent {
	t.Helper()
	free := make(chan struct{})
	a := routestest.Start(t, &routestest.Verbs{Hook: func(context.Context, string, server.When) error {
		<-free
		return nil
	}})
	t.Cleanup(func() { close(free) }) // runs before Start's cleanup, which waits for the requests under way
	a.Open()
	return a
}

// An agent that hangs counts as away: `berth status` shows what is known without it, and
// does not send people to the command that they have just used.
func TestStatusOfHanging(t *testing.T) {
	a := hanging(t)
	var out, errs strings.Builder
	app := &app{stdout: &out, stderr: &errs, patience: time.Millisecond, now: time.Now}
	code := app.run(context.Background(), []string{"--root", string(a.Dir), "status"})
	for _, want := range []string{"away: the agent does not answer within 1ms\n", "\nledger        " + a.Dir.Ledger(), "\nnext          the agent hangs: look at its log"} {
		if code != 1 || errs.Len() > 0 || !strings.Contains(out.String(), want) {
			t.Errorf("exit code %d, %q, %q not in\n%s", code, errs.String(), want, out.String())
		}
	}
}

// An audit that cannot be made has another exit code than one with findings.
func TestAuditFails(t *testing.T) {
	a := routestest.Start(t, &routestest.Verbs{Hook: func(context.Context, string, server.When) error {
		return &api.Error{Code: cni.CodeInternal, Msg: "internal error", Details: "first line\nsecond line"}
	}})
	a.Open()
	out, errs, code := run(a, "audit")
	if code != 2 || out != "" || errs != "berth: internal error: first line; second line\n" {
		t.Errorf("exit code %d, %q, %q", code, out, errs)
	}
}

// `berth release` says what is owed. That is a failure only with --wait.
func TestReleaseOwed(t *testing.T) {
	a := routestest.Start(t, &routestest.Verbs{DeletedOwed: 1})
	a.Open()
	stuck := routestest.Attachment("aaaaaaaaaa", "c1")
	a.Verbs.Hook = func(_ context.Context, verb string, _ server.When) error {
		if verb == "get" { // the attachment is still there after its deletion
			a.Verbs.Put(stuck)
		}
		return nil
	}
	a.Verbs.Put(stuck)
	for _, c := range []struct {
		args []string
		code int
	}{{[]string{"release", "c1"}, 0}, {[]string{"release", "--wait", "c1"}, 1}} {
		out, errs, code := run(a, c.args...)
		if code != c.code || errs != "" || !strings.Contains(out, "aaaaaaaaaa  1 release owed; agent retries  pod default/web-0  10.88.0.7,fd00::7\n") {
			t.Errorf("%v: exit code %d, %q\n%s", c.args, code, errs, out)
		}
	}
}

// `berth gc` counts as begun before it asks for its list of attachments. So the agent spares what is
// attached after that, and the command shows everything that the agent releases, whatever the list has.
func TestGCBeganBeforeItsList(t *testing.T) {
	var listed, began int64
	a := routestest.Start(t, &routestest.Verbs{Hook: func(_ context.Context, verb string, w server.When) error {
		switch verb {
		case "list":
			listed = boottime.Now()
		case "gc":
			began = w.Started
		}
		return nil
	}})
	a.Open()
	a.Verbs.Put(routestest.Attachment("bbbbbbbbbb", "c2"))
	out, errs, code := run(a, "gc", "--network", "net", "--keep", "c2")
	if code != 0 || !strings.Contains(out, "aaaaaaaaaa  released  an attachment that was still being made  -\n") {
		t.Errorf("%d: %s%s", code, out, errs)
	}
	if began == 0 || began > listed {
		t.Errorf("GC began at %d, the list is of %d", began, listed)
	}
}

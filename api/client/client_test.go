package client_test

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/api/client"
	"github.com/berth-net/berth/internal/boottime"
	"github.com/berth-net/berth/internal/cni"
	"github.com/berth-net/berth/internal/daemon/server"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/routes/routestest"
)

var addRequest = api.AddRequest{ContainerID: "c1", Ifname: "eth0", Netns: api.Netns{Path: "/run/netns/a"}, Config: []byte(`{"name":"net"}`)}

func open(t *testing.T, v *routestest.Verbs) *client.Client {
	t.Helper()
	a := routestest.Start(t, v)
	a.Open()
	return a.Client
}

// Each verb's answer arrives with everything that its types can say.
func TestVerbs(t *testing.T) {
	ctx := t.Context()
	verbs := &routestest.Verbs{DeletedOwed: 1}
	one, two := routestest.Attachment("aaaaaaaaaa", "c1"), routestest.Attachment("bbbbbbbbbb", "c2")
	verbs.Put(one, two)
	c := open(t, verbs)
	equal := func(what string, err error, got, want any) {
		t.Helper()
		if err != nil {
			t.Errorf("%s: %v", what, err)
		} else if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}
	result, err := c.Add(ctx, addRequest)
	equal("add", err, string(result), routestest.Result)
	equal("check", c.Check(ctx, addRequest), nil, nil)
	gc, err := c.GC(ctx, api.GCRequest{Network: "net"}) // the request's list of valid attachments is null
	equal("gc", err, gc, api.Deleted{Owed: 1, IDs: []string{"aaaaaaaaaa"}})
	adopted, err := c.Adopt(ctx, api.AdoptRequest{DryRun: true})
	wantAdopted, _ := verbs.Adopt(ctx, api.AdoptRequest{})
	equal("adopt", err, adopted, wantAdopted)
	list, err := c.List(ctx, api.Filter{Container: "c2", State: "owed"})
	equal("list", err, list, []api.Attachment{two})
	got, err := c.Get(ctx, "aaaaaaaaaa")
	equal("get", err, got, one)
	owed, err := c.Owed(ctx)
	equal("owed", err, owed, verbs.Owed())
	if len(owed.Holds) != 3 || owed.Holds[0].ContainerID != "c1" {
		t.Errorf("owed: %+v", owed)
	}
	nodes, err := c.Nodes(ctx)
	equal("nodes", err, nodes, verbs.Health())
	tried, err := c.RetryOwed(ctx, "aaaaaaaaaa", "bbbbbbbbbb")
	equal("retry", err, tried, api.Retried{Holds: 2, Deletions: 1})
	tried, err = c.RetryOwed(ctx)
	equal("retry of all", err, tried, api.Retried{Deletions: 1})
	deleted, err := c.Delete(ctx, api.Filter{Container: "c1"}, true)
	equal("delete", err, deleted, api.Deleted{Released: 1, Owed: 1})
	deleted, err = c.DeleteOne(ctx, "bbbbbbbbbb", false)
	equal("delete one", err, deleted, api.Deleted{Released: 1, Owed: 1})
	list, err = c.List(ctx, api.Filter{})
	equal("list of nothing", err, list, []api.Attachment{})
	pools, err := c.Pools(ctx)
	equal("pools", err, pools, verbs.Pools())
	status, err := c.Status(ctx, "default")
	want, _ := verbs.Status(ctx, "")
	equal("status", err, status, want)
	audit, err := c.Audit(ctx)
	wantAudit, _ := verbs.Audit(ctx)
	equal("audit", err, audit, wantAudit)
	audit, err = c.AuditPods(ctx)
	wantAudit, _ = verbs.AuditPods(ctx)
	equal("audit of pods", err, audit, wantAudit)
	health, err := c.Health(ctx)
	equal("health", err, health, api.Health{Serving: true})
	ledger, err := c.Ledger(ctx)
	equal("ledger", err, ledger, verbs.Ledger())
	owner, err := hold.Kinds{}.Decode(ledger.Owners[0])
	equal("an owner of the ledger", err, owner.NamesIn("address"), []string{"10.88.0.7"})
}

// Metrics are in Prometheus's text format. Listener names the listening process without an
// answer of the agent.
func TestMetricsAndListener(t *testing.T) {
	a := routestest.Start(t, &routestest.Verbs{})
	if pid, err := client.Listener(t.Context(), a.Dir.Socket()); err != nil || pid != os.Getpid() {
		t.Errorf("%d listens, %v; this is %d", pid, err, os.Getpid())
	}
	a.Open()
	text, err := a.Client.Metrics(t.Context())
	if err != nil || !strings.Contains(string(text), "# TYPE ") {
		t.Errorf("%.200s, %v", text, err)
	}
	nobody := filepath.Join(t.TempDir(), "socket")
	if _, err := client.New(nobody).Metrics(t.Context()); !errors.Is(err, client.ErrAway) {
		t.Errorf("metrics of nobody: %v", err)
	}
	if _, err := client.Listener(t.Context(), nobody); !errors.Is(err, client.ErrAway) {
		t.Errorf("nobody listens: %v", err)
	}
}

func TestFilterArrives(t *testing.T) {
	want := api.Filter{
		Network: "n", Container: "c", Ifname: "e", Namespace: "ns", Pod: "p é&=", UID: "u",
		Address: "fd00::1", Link: "l",
	}
	var got api.Filter
	c := open(t, &routestest.Verbs{Filter: func(f api.Filter) { got = f }})
	if _, err := c.List(t.Context(), want); err != nil || got != want {
		t.Errorf("List: %v, got %+v", err, got)
	}
	for given, kept := range map[string]string{"::ffff:10.88.0.7": "10.88.0.7", "FD00:0::0007": "fd00::7"} {
		if _, err := c.List(t.Context(), api.Filter{Address: given}); err != nil || got.Address != kept {
			t.Errorf("address %s: %v, arrived as %s", given, err, got.Address)
		}
	}
	got = api.Filter{}
	if _, err := c.Delete(t.Context(), want, true); !client.IsUnknown(err) || got != want {
		t.Errorf("Delete: %v, got %+v", err, got)
	}
}

func TestErrors(t *testing.T) {
	exhausted := &api.Error{CNIVersion: "1.0.0", Code: cni.CodeNotAvailable, Msg: "pool exhausted", Details: "p"}
	c := open(t, &routestest.Verbs{Hook: func(context.Context, string, server.When) error { return exhausted }})
	_, err := c.Add(t.Context(), addRequest)
	var e *api.Error
	if !errors.As(err, &e) || *e != *exhausted || client.IsUnknown(err) {
		t.Errorf("add: %v", err)
	}
	st, err := c.Status(t.Context(), "")
	if !errors.As(err, &e) || *e != *exhausted {
		t.Errorf("status: %v", err)
	}
	if st.Instance != "abcdefghij" || len(st.Pools) != 1 {
		t.Errorf("the status beside the error is %+v", st)
	}
	if _, err := c.Get(t.Context(), "zzzzzzzzzz"); !client.IsUnknown(err) {
		t.Errorf("an unknown ID: %v", err)
	}
	for _, id := range []string{"", "..", "?wait=true", "a/b"} {
		if _, err := c.DeleteOne(t.Context(), id, false); !errors.As(err, &e) || e.Code != cni.CodeEnv {
			t.Errorf("deleting the ID %q: %v", id, err)
		}
	}
}

func TestDeadlineIsTold(t *testing.T) {
	var got server.When
	c := open(t, &routestest.Verbs{Hook: func(_ context.Context, _ string, w server.When) error {
		got = w
		return nil
	}})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	before := boottime.Now()
	if _, err := c.Add(ctx, addRequest); err != nil {
		t.Fatal(err)
	}
	if got.Started < before || got.Started > boottime.Now() {
		t.Errorf("the start is %v after the call", time.Duration(got.Started-before))
	}
	if d := time.Duration(got.Deadline - before); d < 19*time.Second || d > 21*time.Second {
		t.Errorf("the deadline is in %v, want 20s", d)
	}
}

// Whatever the reason why no agent answers, the error is ErrAway.
func TestAway(t *testing.T) {
	dir := t.TempDir()
	long := filepath.Join(dir, strings.Repeat("x", 200))
	nettest.Must(t, os.Mkdir(long, 0o700))
	left := filepath.Join(dir, "left")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: left, Net: "unix"})
	nettest.Must(t, err)
	l.SetUnlinkOnClose(false)
	l.Close()
	dies := filepath.Join(dir, "dies")
	nettest.Accept(t, nil, "unix", dies, func(conn net.Conn) { conn.Close() })
	for name, path := range map[string]string{
		"no socket": filepath.Join(dir, "none"), "no folder": filepath.Join(dir, "none/s"), "nobody listens": left,
		"no socket, long": filepath.Join(long, "none"), "no folder, long": filepath.Join(long, "none/s"), "dies": dies,
	} {
		c := client.New(path)
		if _, err := c.Health(t.Context()); !errors.Is(err, client.ErrAway) {
			t.Errorf("%s: %v", name, err)
		}
		for _, err := range c.Events(t.Context(), nil, nil) {
			if !errors.Is(err, client.ErrAway) {
				t.Errorf("%s: events: %v", name, err)
			}
		}
		c.Close()
	}
}

// A failure that says nothing about the agent is not ErrAway.
func TestNotAway(t *testing.T) {
	a := routestest.Start(t, &routestest.Verbs{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := a.Client.Health(ctx); !errors.Is(err, context.Canceled) || errors.Is(err, client.ErrAway) {
		t.Errorf("called off: %v", err)
	}
	if os.Geteuid() == 0 {
		return // root may open everything: only other users run the rest
	}
	nettest.Must(t, os.Chmod(a.Dir.Socket(), 0))
	if _, err := a.Client.Health(t.Context()); !errors.Is(err, fs.ErrPermission) || errors.Is(err, client.ErrAway) {
		t.Errorf("not allowed: %v", err)
	}
}

func TestEvents(t *testing.T) {
	a := routestest.Start(t, &routestest.Verbs{})
	at := routestest.Attachment("aaaaaaaaaa", "c1")
	a.Events.Publish(api.Event{Type: "attaching", Owner: at.ID})
	since := uint64(0)
	var got []uint64
	publish := func() { a.Events.Publish(api.Event{Type: "owed", Owner: at.ID, Attachment: &at}) }
	for e, err := range a.Client.Events(t.Context(), &since, publish) {
		nettest.Must(t, err)
		if got = append(got, e.Seq); len(got) == 2 {
			if diff := cmp.Diff(&at, e.Attachment); diff != "" {
				t.Errorf("the event's attachment (-want +got):\n%s", diff)
			}
			break
		}
	}
	for e, err := range a.Client.Events(t.Context(), nil, publish) {
		nettest.Must(t, err)
		got = append(got, e.Seq)
		break
	}
	if diff := cmp.Diff([]uint64{1, 2, 3}, got); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}

	ctx, cancel := context.WithCancel(t.Context())
	for _, err := range a.Client.Events(ctx, nil, cancel) {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("called off: %v", err)
		}
	}
	a.Events.Close()
	var last api.Event
	for e, err := range a.Client.Events(t.Context(), nil, nil) {
		nettest.Must(t, err)
		last = e
	}
	if last.Type != "end" || last.Seq != 3 {
		t.Errorf("the last line is %+v", last)
	}
}

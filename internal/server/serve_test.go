package server_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/boottime"
	"github.com/berth-net/berth/internal/cni"
	"github.com/berth-net/berth/internal/root"
	"github.com/berth-net/berth/internal/server"
	"github.com/berth-net/berth/internal/server/servertest"
)

var addRequest = api.AddRequest{ContainerID: "c1", Ifname: "eth0", Netns: api.Netns{Path: "/run/netns/a"}, Config: []byte(`{"name":"net"}`)}

// wantCode wants an *api.Error of a code whose text has words.
func wantCode(t *testing.T, err error, code uint, words string) {
	t.Helper()
	var e *api.Error
	if !errors.As(err, &e) || e.Code != code || !strings.Contains(e.Error(), words) {
		t.Errorf("got %v, want code %d with %q", err, code, words)
	}
}

// TestFence asks an agent that has not restored its ledger yet.
func TestFence(t *testing.T) {
	verbs := &servertest.Verbs{}
	var executed atomic.Int32
	verbs.Hook = func(_ context.Context, verb string, _ server.When) error {
		if verb != "status" {
			executed.Add(1)
		}
		return nil
	}
	a := servertest.Start(t, verbs)
	soon, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	_, err := a.Client.Delete(soon, api.Filter{Container: "c1"}, false)
	wantCode(t, err, cni.CodeTryAgain, "restoring")
	if st, err := a.Client.Status(t.Context(), ""); err != nil || !st.Restoring {
		t.Errorf("status while restoring: %+v, %v", st, err)
	}
	if h, err := a.Client.Health(t.Context()); err != nil || h.Serving {
		t.Errorf("health while restoring: %+v, %v", h, err)
	}
	if n := executed.Load(); n != 0 {
		t.Fatalf("%d verbs were executed before Open", n)
	}
	added := make(chan error)
	go func() {
		_, err := a.Client.Add(t.Context(), addRequest)
		added <- err
	}()
	waitFor(t, a, `berth_requests_waiting{lane="add"} 1`)
	a.Open()
	if err := <-added; err != nil {
		t.Errorf("the ADD that waited: %v", err)
	}
	if st, err := a.Client.Status(t.Context(), ""); err != nil || st.Restoring {
		t.Errorf("status after Open: %+v, %v", st, err)
	}
}

// waitFor waits until the metrics have a line.
func waitFor(t *testing.T, a *servertest.Agent, line string) {
	t.Helper()
	for {
		_, _, body := get(t, a, api.PathMetrics, nil)
		if strings.Contains("\n"+body, "\n"+line+"\n") {
			return
		}
		if t.Context().Err() != nil {
			t.Fatalf("never: %s", line)
		}
	}
}

// get makes a GET without the client.
func get(t *testing.T, a *servertest.Agent, target string, header http.Header) (int, http.Header, string) {
	t.Helper()
	return request(t, a, "GET", target, "", header)
}

func request(t *testing.T, a *servertest.Agent, method, target, body string, header http.Header) (int, http.Header, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, "http://berthd"+target, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for name, values := range header {
		req.Header[name] = values
	}
	status, h, raw := exchange(t, a, req, false)
	return status, h, string(raw)
}

func at(d time.Duration) string { return strconv.FormatInt(boottime.Now()+int64(d), 10) }

func TestWhen(t *testing.T) {
	var got server.When
	var left time.Duration
	executed := false
	verbs := &servertest.Verbs{Hook: func(ctx context.Context, _ string, w server.When) error {
		deadline, _ := ctx.Deadline()
		got, left, executed = w, time.Until(deadline), true
		return nil
	}}
	a := servertest.Start(t, verbs)
	a.Open()
	for _, test := range []struct {
		name              string
		started, deadline time.Duration // from now; 0: no header
		wantStart, want   time.Duration // from now
		code              uint
		words             string
	}{
		{name: "no header", want: time.Minute},
		{name: "both", started: -time.Second, deadline: 10 * time.Second, wantStart: -time.Second, want: 10 * time.Second},
		{name: "too late", started: -time.Second, deadline: time.Hour, wantStart: -time.Second, want: server.MaxDeadline - time.Second},
		{name: "started long ago", started: -2 * server.MaxDeadline, deadline: time.Minute, code: 11, words: "nothing was done"},
		{name: "expired", started: -time.Second, deadline: -time.Millisecond, code: 11, words: "nothing was done"},
		{name: "from the future", started: time.Hour, code: 4, words: "time namespace"},
	} {
		t.Run(test.name, func(t *testing.T) {
			h := http.Header{}
			if test.started != 0 {
				if boottime.Now()+int64(test.started) <= 0 {
					return // the machine has been booted less than 10 minutes ago: nothing can be that old
				}
				h.Set(api.HeaderStarted, at(test.started))
			}
			if test.deadline != 0 {
				h.Set(api.HeaderDeadline, at(test.deadline))
			}
			executed = false
			now := boottime.Now()
			status, _, body := request(t, a, "POST", api.PathAttachments, addBody, h)
			if test.code != 0 {
				if want := fmt.Sprintf(`"code":%d,`, test.code); executed || !strings.Contains(body, want) || !strings.Contains(body, test.words) {
					t.Errorf("executed %v, %d %s; want %s ... %s", executed, status, body, want, test.words)
				}
				return
			}
			if status != 200 || !executed {
				t.Fatalf("%d %s", status, body)
			}
			near := func(what string, got, want time.Duration) {
				if d := got - want; d < -time.Second/2 || d > time.Second/2 {
					t.Errorf("%s is in %v, want %v", what, got, want)
				}
			}
			near("start", time.Duration(got.Started-now), test.wantStart)
			near("deadline", time.Duration(got.Deadline-now), test.want)
			near("the context's end", left, test.want)
			if left >= got.Remaining() {
				t.Errorf("the context ends %v after the deadline: no time to answer", left-got.Remaining())
			}
		})
	}
}

func TestBadHeaders(t *testing.T) {
	a := servertest.Start(t, &servertest.Verbs{})
	a.Open()
	for _, values := range [][]string{{""}, {"x"}, {"-5"}, {"0"}, {"1e9"}, {"99999999999999999999"}, {"1", "2"}} {
		for _, name := range []string{api.HeaderStarted, api.HeaderDeadline} {
			status, _, body := get(t, a, api.PathHealth, http.Header{name: values})
			if status != 400 || !strings.Contains(body, name) || !strings.Contains(body, `"code":4,`) {
				t.Errorf("%s %q: %d %s", name, values, status, body)
			}
		}
	}
}

// TestDeadlineEndsVerb has verbs that hang: their contexts end early enough to
// tell the client so.
func TestDeadlineEndsVerb(t *testing.T) {
	verbs := &servertest.Verbs{Hook: func(ctx context.Context, _ string, _ server.When) error {
		<-ctx.Done()
		return fmt.Errorf("waiting for a link: %w", ctx.Err())
	}}
	a := servertest.Start(t, verbs)
	a.Open()
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	_, err := a.Client.Add(ctx, addRequest)
	wantCode(t, err, cni.CodeTryAgain, "waiting for a link")
}

// TestClientLeaves has clients leave while their request is executed: an ADD
// ends, a deletion goes on.
func TestClientLeaves(t *testing.T) {
	entered, ended := make(chan struct{}), make(chan error)
	goOn := make(chan struct{})
	verbs := &servertest.Verbs{Hook: func(ctx context.Context, verb string, _ server.When) error {
		entered <- struct{}{}
		if verb == "delete" {
			<-goOn
			ended <- ctx.Err()
		} else {
			<-ctx.Done()
			ended <- ctx.Err()
		}
		return nil
	}}
	a := servertest.Start(t, verbs)
	a.Open()
	ctx, leave := context.WithCancel(t.Context())
	go a.Client.Add(ctx, addRequest)
	<-entered
	leave()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("an ADD without a client: %v", err)
	}

	ctx, leave = context.WithCancel(t.Context())
	left := make(chan error)
	go func() {
		_, err := a.Client.Delete(ctx, api.Filter{Container: "c1"}, false)
		left <- err
	}()
	<-entered
	leave()
	if err := <-left; !errors.Is(err, context.Canceled) {
		t.Errorf("a client that left: %v", err)
	}
	close(goOn)
	if err := <-ended; err != nil {
		t.Errorf("a deletion without a client: %v", err)
	}
}

func TestPanic(t *testing.T) {
	verbs := &servertest.Verbs{Hook: func(_ context.Context, verb string, _ server.When) error {
		if verb == "add" {
			panic("a nil somewhere")
		}
		return nil
	}}
	a := servertest.New(t, root.Dir(t.TempDir()), verbs, 1)
	a.Run(t)
	a.Open()
	_, err := a.Client.Add(t.Context(), addRequest)
	wantCode(t, err, cni.CodeInternal, "a nil somewhere")
	if err := a.Client.Check(t.Context(), addRequest); err != nil {
		t.Errorf("the only place was not given back: %v", err)
	}
}

// TestStop stops an agent with a verb under way, one that waits, and a reader
// of events.
func TestStop(t *testing.T) {
	entered, finish := make(chan struct{}), make(chan struct{})
	verbs := &servertest.Verbs{Hook: func(_ context.Context, verb string, _ server.When) error {
		if verb == "add" {
			entered <- struct{}{}
			<-finish
		}
		return nil
	}}
	a := servertest.New(t, root.Dir(t.TempDir()), verbs, 1)
	a.Run(t)
	a.Open()
	added, waited, last := make(chan error), make(chan error), make(chan api.Event)
	go func() {
		_, err := a.Client.Add(t.Context(), addRequest)
		added <- err
	}()
	<-entered
	go func() { waited <- a.Client.Check(t.Context(), addRequest) }()
	waitFor(t, a, `berth_requests_waiting{lane="check"} 1`)
	heard := make(chan struct{})
	go func() {
		var e api.Event
		for e = range a.Client.Events(t.Context(), nil, func() { close(heard) }) {
		}
		last <- e
	}()
	<-heard

	impatient, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	stopped := make(chan error)
	go func() { stopped <- a.Shutdown(t.Context()) }()
	wantCode(t, <-waited, cni.CodeTryAgain, "stopping")
	if e := <-last; e.Type != "end" || !strings.Contains(e.Message, "stopping") {
		t.Errorf("the stream's last line is %+v", e)
	}
	if err := a.Shutdown(impatient); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("an impatient stop: %v", err)
	}
	close(finish)
	if err := <-stopped; err != nil && !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the stop: %v", err)
	}
	if err := <-added; err == nil {
		t.Error("the verb under way was answered after its connection had been closed")
	}
}

// TestGracefulStop lets a verb under way end before the connection does.
func TestGracefulStop(t *testing.T) {
	entered, finish := make(chan struct{}), make(chan struct{})
	verbs := &servertest.Verbs{Hook: func(ctx context.Context, _ string, _ server.When) error {
		close(entered)
		<-finish
		return ctx.Err()
	}}
	a := servertest.Start(t, verbs)
	a.Open()
	added := make(chan error)
	go func() {
		_, err := a.Client.Add(t.Context(), addRequest)
		added <- err
	}()
	<-entered
	stopped := make(chan error)
	go func() { stopped <- a.Shutdown(t.Context()) }()
	for { // until it does not listen any more
		if _, err := a.Client.Health(t.Context()); err != nil {
			break
		}
	}
	close(finish)
	if err := <-added; err != nil {
		t.Errorf("the verb under way: %v", err)
	}
	if err := <-stopped; err != nil {
		t.Errorf("the stop: %v", err)
	}
}

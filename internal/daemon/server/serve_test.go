package server

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
	"github.com/berth-net/berth/internal/turn"
)

// TestFence asks a daemon that has not restored its ledger yet.
func TestFence(t *testing.T) {
	d := startToy(t)
	var executed atomic.Int32
	d.hook = func(context.Context, string, When) error { executed.Add(1); return nil }
	soon := d.ask(t.Context(), "DELETE", pathToys+"/bear", "", http.Header{api.HeaderDeadline: {at(200 * time.Millisecond)}})
	wantCode(t, soon.err, cni.CodeTryAgain, "restoring")
	if a := d.ask(t.Context(), "GET", pathState, "", nil); a.body != "true\n" {
		t.Errorf("state while restoring: %+v", a)
	}
	if h, err := d.client.Health(t.Context()); err != nil || h.Serving {
		t.Errorf("health while restoring: %+v, %v", h, err)
	}
	if n := executed.Load(); n != 0 {
		t.Fatalf("%d calls were executed before Open", n)
	}
	made := make(chan error)
	go func() { made <- d.makeOne(t.Context()) }()
	d.waitFor(t, `berth_requests_waiting{lane="make"} 1`)
	d.Open()
	if err := <-made; err != nil {
		t.Errorf("the call that waited: %v", err)
	}
	if a := d.ask(t.Context(), "GET", pathState, "", nil); a.body != "false\n" {
		t.Errorf("state after Open: %+v", a)
	}
}

func at(d time.Duration) string { return strconv.FormatInt(boottime.Now()+int64(d), 10) }

func TestWhen(t *testing.T) {
	var got When
	var left time.Duration
	executed := false
	d := startToy(t)
	d.hook = func(ctx context.Context, _ string, w When) error {
		deadline, _ := ctx.Deadline()
		got, left, executed = w, time.Until(deadline), true
		return nil
	}
	d.Open()
	for _, test := range []struct {
		name             string
		started, running time.Duration // from now; 0: no header
		deadline         time.Duration // likewise
		wantStart, want  time.Duration // from now
		code             uint
		words            string
	}{
		{name: "no header", want: time.Minute},
		{name: "both", started: -time.Second, deadline: 10 * time.Second, wantStart: -time.Second, want: 10 * time.Second},
		{name: "too late", started: -time.Second, deadline: time.Hour, wantStart: -time.Second, want: MaxDeadline - time.Second},
		{name: "started long ago", started: -2 * MaxDeadline, deadline: time.Minute, code: 11, words: "nothing was done"},
		{name: "in a process kept ready", started: -2 * MaxDeadline, running: -time.Second, deadline: time.Hour, wantStart: -2 * MaxDeadline, want: MaxDeadline - time.Second},
		{name: "running before it began", started: -time.Second, running: -time.Hour, deadline: time.Hour, wantStart: -time.Second, want: MaxDeadline - time.Second},
		{name: "running in the future", running: time.Hour, code: 4, words: "time namespace"},
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
			if test.running != 0 {
				h.Set(api.HeaderRunning, at(max(test.running, time.Duration(1-boottime.Now()))))
			}
			if test.deadline != 0 {
				h.Set(api.HeaderDeadline, at(test.deadline))
			}
			executed = false
			now := boottime.Now()
			a := d.ask(t.Context(), "POST", pathToys, aToy, h)
			if test.code != 0 {
				if wantCode(t, a.err, test.code, test.words); executed {
					t.Error("it was executed")
				}
				return
			}
			if a.status != 200 || !executed {
				t.Fatalf("%+v", a)
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
	d := startToy(t)
	d.Open()
	for _, values := range [][]string{{""}, {"x"}, {"-5"}, {"0"}, {"1e9"}, {"99999999999999999999"}, {"1", "2"}} {
		for _, name := range []string{api.HeaderStarted, api.HeaderRunning, api.HeaderDeadline} {
			a := d.ask(t.Context(), "GET", api.PathHealth, "", http.Header{name: values})
			if wantCode(t, a.err, cni.CodeEnv, name); a.status != 400 {
				t.Errorf("%s %q: %+v", name, values, a)
			}
		}
	}
}

// If a call hangs, its context ends early enough for the client to hear of it.
func TestDeadlineEndsCall(t *testing.T) {
	d := startToy(t)
	d.hook = func(ctx context.Context, _ string, _ When) error {
		<-ctx.Done()
		return fmt.Errorf("waiting for glue: %w", ctx.Err())
	}
	d.Open()
	a := d.ask(t.Context(), "POST", pathToys, aToy, http.Header{api.HeaderDeadline: {at(time.Second)}})
	wantCode(t, a.err, cni.CodeTryAgain, "waiting for glue")
}

// If a client leaves while its request is executed, the call ends, unless its route says
// Finish.
func TestClientLeaves(t *testing.T) {
	entered, ended := make(chan struct{}), make(chan error)
	goOn := make(chan struct{})
	d := startToy(t)
	d.hook = func(ctx context.Context, verb string, _ When) error {
		entered <- struct{}{}
		if verb == "break" {
			<-goOn
			ended <- ctx.Err()
		} else {
			<-ctx.Done()
			ended <- ctx.Err()
		}
		return nil
	}
	d.Open()
	ctx, leave := context.WithCancel(t.Context())
	go d.makeOne(ctx)
	<-entered
	leave()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("a call without a client: %v", err)
	}

	ctx, leave = context.WithCancel(t.Context())
	left := make(chan error)
	go func() { left <- d.breakOne(ctx) }()
	<-entered
	leave()
	if err := <-left; !errors.Is(err, context.Canceled) {
		t.Errorf("a client that left: %v", err)
	}
	close(goOn)
	if err := <-ended; err != nil {
		t.Errorf("a call to be finished, without a client: %v", err)
	}
}

func TestPanic(t *testing.T) {
	d := newToy(t, root.Dir(t.TempDir()), 1)
	d.hook = func(_ context.Context, verb string, _ When) error {
		if verb == "make" {
			panic("a nil somewhere")
		}
		return nil
	}
	d.run(t)
	d.Open()
	wantCode(t, d.makeOne(t.Context()), cni.CodeInternal, "a nil somewhere")
	if err := d.look(t.Context()); err != nil {
		t.Errorf("the only place was not given back: %v", err)
	}
}

// TestStop stops a daemon while one call is under way, another one waits, and a reader
// follows a stream.
func TestStop(t *testing.T) {
	entered, finish := make(chan struct{}), make(chan struct{})
	d := newToy(t, root.Dir(t.TempDir()), 1)
	d.hook = func(_ context.Context, verb string, _ When) error {
		if verb == "make" {
			entered <- struct{}{}
			<-finish
		}
		return nil
	}
	d.run(t)
	d.Open()
	made, waited, read := make(chan error), make(chan error), make(chan string)
	go func() { made <- d.makeOne(t.Context()) }()
	<-entered
	go func() { waited <- d.look(t.Context()) }()
	d.waitFor(t, `berth_requests_waiting{lane="look"} 1`)
	go func() { read <- d.ask(t.Context(), "GET", pathNews, "", nil).body }()
	d.news <- "a bear" // waits for the reader

	impatient, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	stopped := make(chan error)
	go func() { stopped <- d.Shutdown(t.Context()) }()
	wantCode(t, <-waited, cni.CodeTryAgain, "stopping")
	if body := <-read; !strings.HasSuffix(body, "\"the end: the agent is stopping\"\n") {
		t.Errorf("the stream ends with %q", body)
	}
	if err := d.Shutdown(impatient); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("an impatient stop: %v", err)
	}
	close(finish)
	if err := <-stopped; err != nil && !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the stop: %v", err)
	}
	if err := <-made; err == nil {
		t.Error("the call under way was answered after its connection had been closed")
	}
}

// Shutdown lets a call that is under way end before it closes the connection.
func TestGracefulStop(t *testing.T) {
	entered, finish := make(chan struct{}), make(chan struct{})
	d := startToy(t)
	d.hook = func(ctx context.Context, _ string, _ When) error {
		close(entered)
		<-finish
		return ctx.Err()
	}
	d.Open()
	made := make(chan error)
	go func() { made <- d.makeOne(t.Context()) }()
	<-entered
	stopped := make(chan error)
	go func() { stopped <- d.Shutdown(t.Context()) }()
	for { // until the daemon does not listen any more
		if _, err := d.client.Health(t.Context()); err != nil {
			break
		}
	}
	close(finish)
	if err := <-made; err != nil {
		t.Errorf("the call under way: %v", err)
	}
	if err := <-stopped; err != nil {
		t.Errorf("the stop: %v", err)
	}
}

// Requests that wait aside (turn.Aside) keep no place, and Shutdown ends them.
func TestAside(t *testing.T) {
	const many = 5
	d := newToy(t, root.Dir(t.TempDir()), 4) // 3 places for those that make toys
	waits := make(chan struct{}, many)
	d.hook = func(ctx context.Context, verb string, _ When) error {
		if verb != "make" {
			return nil
		}
		ctx, over, _ := turn.Aside(ctx)
		defer over()
		waits <- struct{}{}
		<-ctx.Done()
		return context.Cause(ctx)
	}
	d.run(t)
	d.Open()
	made := make(chan error, many)
	for range many {
		go func() { made <- d.makeOne(t.Context()) }()
	}
	for range many {
		<-waits
	}
	if err := d.look(t.Context()); err != nil {
		t.Error(err)
	}
	if busy, _ := d.queue.load(); busy != 0 {
		t.Errorf("%d places are taken", busy)
	}
	if err := d.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	for range many {
		wantCode(t, <-made, cni.CodeTryAgain, "the agent is stopping")
	}
	if len(d.asides) != 0 {
		t.Errorf("%d wait aside", len(d.asides))
	}
}

// Requests that wait for a turn keep no place, and get one again when their turn comes.
func TestTurnsAside(t *testing.T) {
	const many = 5
	d := newToy(t, root.Dir(t.TempDir()), 4) // 3 places for those that make toys
	turns := &turn.Turns[string]{Aside: true}
	begun, finish := make(chan struct{}), make(chan struct{})
	d.hook = func(ctx context.Context, verb string, _ When) error {
		if verb != "make" {
			return nil
		}
		done, err := turns.Take(ctx, "toy")
		if err != nil {
			return err
		}
		defer done()
		begun <- struct{}{}
		<-finish
		return nil
	}
	d.run(t)
	d.Open()
	made := make(chan error, many)
	for range many {
		go func() { made <- d.makeOne(t.Context()) }()
	}
	for left := many - 1; left >= 0; left-- {
		<-begun
		d.waitFor(t, fmt.Sprintf("berth_requests_aside %d", left))
		d.waitFor(t, "berth_requests_executing 1")
		if err := d.look(t.Context()); err != nil {
			t.Error(err)
		}
		finish <- struct{}{}
		if err := <-made; err != nil {
			t.Error(err)
		}
	}
	d.waitFor(t, "berth_requests_executing 0")
	if len(d.asides) != 0 {
		t.Errorf("%d wait aside", len(d.asides))
	}
}

// If too many requests would wait aside, some of them keep their places.
func TestAsidesAreBounded(t *testing.T) {
	d := newToy(t, root.Dir(t.TempDir()), 4)
	for range maxAsides {
		d.asides <- struct{}{}
	}
	p := &place{server: d.Server, give: func() { t.Error("the place is given back") }}
	done, left := p.aside()
	if done(); left || len(d.asides) != maxAsides {
		t.Errorf("left: %v, %d wait aside", left, len(d.asides))
	}
}

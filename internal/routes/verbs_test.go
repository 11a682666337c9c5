package routes_test

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/daemon/server"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/routes/routestest"
)

var addRequest = api.AddRequest{ContainerID: "c1", Ifname: "eth0", Netns: api.Netns{Path: "/run/netns/a"}, Config: []byte(`{"name":"net"}`)}

// waitFor waits until the metrics have a line.
func waitFor(t *testing.T, a *routestest.Agent, line string) {
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

// get makes a GET request without package client.
func get(t *testing.T, a *routestest.Agent, target string, header http.Header) (int, http.Header, string) {
	t.Helper()
	return request(t, a, "GET", target, "", header)
}

func request(t *testing.T, a *routestest.Agent, method, target, body string, header http.Header) (int, http.Header, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, "http://berthd"+target, strings.NewReader(body))
	nettest.Must(t, err)
	maps.Copy(req.Header, header)
	status, h, raw := exchange(t, a, req, false)
	return status, h, string(raw)
}

// An agent that has not restored its ledger yet says so, and executes no verb but Status.
func TestRestoring(t *testing.T) {
	a := routestest.Start(t, &routestest.Verbs{Hook: func(_ context.Context, verb string, _ server.When) error {
		if verb != "status" {
			t.Errorf("%s was executed before Open", verb)
		}
		return nil
	}})
	deletion := func() error {
		soon, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := a.Client.Delete(soon, api.Filter{Container: "c1"}, false)
		return err
	}
	err := deletion()
	for tries := 1; tries < 10 && errors.Is(err, context.DeadlineExceeded); tries++ {
		err = deletion() // the answer has 100 ms to reach its client, which a busy machine may miss
	}
	if err == nil || !strings.Contains(err.Error(), "restoring") {
		t.Errorf("a deletion: %v", err)
	}
	if st, err := a.Client.Status(t.Context(), ""); err != nil || !st.Restoring {
		t.Errorf("status while restoring: %+v, %v", st, err)
	}
	a.Open()
	if st, err := a.Client.Status(t.Context(), ""); err != nil || st.Restoring {
		t.Errorf("status after Open: %+v, %v", st, err)
	}
}

// If a client leaves while its verb is executed, an ADD ends, and a deletion goes on.
func TestClientLeaves(t *testing.T) {
	entered, ended := make(chan struct{}), make(chan error)
	goOn := make(chan struct{})
	a := routestest.Start(t, &routestest.Verbs{Hook: func(ctx context.Context, verb string, _ server.When) error {
		entered <- struct{}{}
		if verb == "delete" {
			<-goOn
		} else {
			<-ctx.Done()
		}
		ended <- ctx.Err()
		return nil
	}})
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

// When the agent stops, streams of events end.
func TestStopEndsEvents(t *testing.T) {
	a := routestest.Start(t, &routestest.Verbs{})
	heard, last := make(chan struct{}), make(chan api.Event)
	go func() {
		var e api.Event
		for e = range a.Client.Events(t.Context(), nil, func() { close(heard) }) {
		}
		last <- e
	}()
	<-heard
	if err := a.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	if e := <-last; e.Type != "end" || !strings.Contains(e.Message, "stopping") {
		t.Errorf("the stream's last line is %+v", e)
	}
}

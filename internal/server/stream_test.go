package server

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/cni"
	"github.com/berth-net/berth/internal/events"
)

// TestNextLine reads every sort of line that a stream has.
func TestNextLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hub := events.NewHub(2)
		ctx, cancel := context.WithCancelCause(t.Context())
		decoded := func(s *events.Stream, wantLast bool) (e api.Event) {
			t.Helper()
			line, last := nextLine(ctx, s)
			if err := json.Unmarshal(line, &e); err != nil || last != wantLast || !strings.HasSuffix(string(line), "}\n") {
				t.Fatalf("%q, last %v: %v", line, last, err)
			}
			return e
		}

		s, slow := hub.Follow(), hub.Follow()
		hub.Publish(api.Event{Type: "attached", Owner: "a"})
		if e := decoded(s, false); e.Seq != 1 || e.Owner != "a" {
			t.Errorf("the event is %+v", e)
		}

		began := time.Now()
		if line, last := nextLine(ctx, s); string(line) != "\n" || last || time.Since(began) != keepAlive {
			t.Errorf("after %v without news: %q, last %v", time.Since(began), line, last)
		}

		hub.Publish(api.Event{})
		hub.Publish(api.Event{})
		if e := decoded(slow, true); e.Type != api.EventEnd || e.Seq != 0 || !strings.Contains(e.Message, "events 1 to 1") {
			t.Errorf("to a slow reader: %+v", e)
		}

		cancel(errStopping)
		decoded(s, false) // what was published before the stop
		decoded(s, false)
		if e := decoded(s, true); e.Type != api.EventEnd || e.Seq != 3 || !strings.Contains(e.Message, "stopping") {
			t.Errorf("at the stop: %+v", e)
		}

		gone, leave := context.WithCancel(t.Context())
		leave()
		if line, last := nextLine(gone, hub.Follow()); line != nil || !last {
			t.Errorf("to a reader that is gone: %q, last %v", line, last)
		}

		open := hub.Follow()
		hub.Close()
		ctx = t.Context()
		if e := decoded(open, true); e.Type != api.EventEnd || e.Seq != 3 {
			t.Errorf("of a closed hub: %+v", e)
		}
	})
}

// TestReadersAreBounded has as many readers of events as there may be: one more is
// told to try again, and is let in when another has left.
func TestReadersAreBounded(t *testing.T) {
	s := New(Options{Events: events.NewHub(1), Metrics: NewMetrics(), Log: slog.New(slog.DiscardHandler)})
	at := httptest.NewServer(s)
	defer at.Close()
	read := func() *http.Response {
		t.Helper()
		res, err := at.Client().Get(at.URL + api.PathEvents) // which has an answer when it is heard
		if err != nil {
			t.Fatal(err)
		}
		return res
	}
	var readers []*http.Response
	for i := range maxReaders {
		readers = append(readers, read())
		defer readers[i].Body.Close()
		if code := readers[i].StatusCode; code != http.StatusOK {
			t.Fatalf("reader %d is answered %d", i, code)
		}
	}
	refused := read()
	defer refused.Body.Close()
	var said api.Error
	if err := json.NewDecoder(refused.Body).Decode(&said); err != nil || said.Code != cni.CodeTryAgain {
		t.Errorf("one reader too many is told %+v, %v", said, err)
	}
	readers[0].Body.Close()
	s.readers <- struct{}{} // there is room when it has been noticed
	<-s.readers
	next := read()
	defer next.Body.Close()
	if next.StatusCode != http.StatusOK {
		t.Errorf("after another has left, a reader is answered %d", next.StatusCode)
	}
}

package server

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berth-net/berth/api"
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

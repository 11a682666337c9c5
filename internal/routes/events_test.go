package routes

import (
	"context"
	"strings"
	"testing"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/events"
)

// A follower reads an event, and then the last event, which says that there are no more.
func TestFollower(t *testing.T) {
	hub := events.NewHub(2)
	read, slow := follower{hub.Follow()}, follower{hub.Follow()}
	next := func(f follower) (api.Event, error) {
		v, err := f.Next(t.Context())
		return v.(api.Event), err
	}
	end := func(f follower, why error) api.Event { return f.Last(why).(api.Event) }

	hub.Publish(api.Event{Type: "attached", Owner: "a"})
	if e, err := next(read); err != nil || e.Seq != 1 || e.Owner != "a" {
		t.Errorf("the event is %+v, %v", e, err)
	}
	if e := end(read, context.Canceled); e.Type != api.EventEnd || e.Seq != 1 || e.Time.IsZero() || e.Message != "context canceled" {
		t.Errorf("the last line is %+v", e)
	}

	hub.Publish(api.Event{})
	hub.Publish(api.Event{})
	_, err := next(slow)
	if err == nil {
		t.Fatal("a slow reader has missed nothing")
	}
	if e := end(slow, err); e.Seq != 0 || !strings.Contains(e.Message, "events 1 to 1") {
		t.Errorf("to a slow reader: %+v", e)
	}

	open := follower{hub.Follow()}
	hub.Close()
	if _, err := next(open); err == nil || end(open, err).Seq != 3 {
		t.Errorf("of a closed hub: %v", err)
	}
}

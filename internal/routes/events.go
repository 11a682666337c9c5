package routes

import (
	"context"
	"strconv"
	"time"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/daemon/server"
	"github.com/berth-net/berth/internal/events"
)

// follow returns the events that a request asks for.
func (a *agent) follow(r *server.Request) (server.Source, error) {
	since, found := r.Query["since"]
	if !found {
		return follower{a.events.Follow()}, nil
	}
	seq, err := strconv.ParseUint(since, 10, 64)
	if err != nil {
		return nil, server.BadParameter("since", since, "the number of an event")
	}
	return follower{a.events.FollowFrom(seq)}, nil
}

// follower is a reader of events.
type follower struct{ stream *events.Stream }

func (f follower) Next(ctx context.Context) (any, error) { return f.stream.Next(ctx) }

// Last returns an event of type end.
func (f follower) Last(why error) any {
	return api.Event{Seq: f.stream.Last(), Time: time.Now(), Type: api.EventEnd, Message: why.Error()}
}

package cli

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/api/client"
)

const (
	// silence is how long the agent has to send nothing to count as having sent all events that it
	// remembers: the agent sends these events without a pause.
	silence = 300 * time.Millisecond
	// comeBack is the time between two tries to reach an agent that was away.
	comeBack = 200 * time.Millisecond
)

type eventFlags struct {
	follow bool
	since  uint64
	given  bool // --since was given
}

func (a *app) eventsCommand() *cobra.Command {
	var f eventFlags
	c := &cobra.Command{
		Use:   "events",
		Short: "Show what happened lately, or follow what happens",
		Long: `Show what happened lately, as far as the agent remembers it (some thousand
events of its present run). With -f, follow the events from now on, or those
after --since; if the agent is restarted, go on with the new one's events.`,
		Example: `  berth events
  berth events -f
  berth events -f --since 0 -o json | jq -r 'select(.type == "owed") | .message'`,
		RunE: func(c *cobra.Command, _ []string) error {
			f.given = c.Flags().Changed("since")
			if f.follow {
				return a.follow(c.Context(), f)
			}
			return a.lately(c.Context(), f.since)
		},
	}
	c.Flags().BoolVarP(&f.follow, "follow", "f", false, "go on and show new events")
	c.Flags().Uint64Var(&f.since, "since", 0, "begin after the event with this number")
	return c
}

// lately prints the events that the agent remembers.
func (a *app) lately(ctx context.Context, since uint64) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	begun, told := a.now(), time.AfterFunc(quick, cancel)
	defer told.Stop()
	c := client.New(a.dir().Socket())
	defer c.Close()
	heard := false
	for e, err := range c.Events(ctx, &since, func() { heard = true; told.Reset(silence) }) {
		if heard && errors.Is(err, context.Canceled) {
			return nil
		}
		if err != nil {
			return err
		}
		if e.Type == api.EventEnd || e.Time.After(begun) {
			return nil
		}
		told.Reset(silence)
		if err := a.showEvent(e); err != nil {
			return err
		}
	}
	return nil
}

// follow prints events until ctx ends, also across restarts of the agent.
func (a *app) follow(ctx context.Context, f eventFlags) error {
	c := client.New(a.dir().Socket())
	defer c.Close()
	var since *uint64
	if f.given {
		since = &f.since
	}
	run, err := startOf(ctx, c)
	if err != nil {
		return err
	}
	for {
		if since, err = a.followOnce(ctx, c, since); err != nil && ctx.Err() == nil && !errors.Is(err, client.ErrAway) {
			return err
		}
		now, err := a.comesBack(ctx, c)
		switch {
		case ctx.Err() != nil: // the reader has enough
			return nil
		case err != nil:
			return err
		case !now.Equal(run): // another run of the agent counts its events from 1
			run, since = now, new(uint64)
		}
	}
}

// comesBack waits until an agent answers, and returns when that agent was started.
func (a *app) comesBack(ctx context.Context, c *client.Client) (run time.Time, err error) {
	for said := false; ; said = true {
		run, err = startOf(ctx, c)
		if !errors.Is(err, client.ErrAway) || ctx.Err() != nil {
			return run, err
		}
		if !said {
			a.none("berth: the agent is away; waiting for it")
		}
		wait(ctx, comeBack)
	}
}

// followOnce prints a stream of events to its end, and returns the number of the last event.
func (a *app) followOnce(ctx context.Context, c *client.Client, since *uint64) (*uint64, error) {
	for e, err := range c.Events(ctx, since, nil) {
		if err != nil {
			return since, err
		}
		since = &e.Seq
		if e.Type == api.EventEnd {
			a.none("berth: the agent ends the stream: %s", e.Message)
			break
		}
		if err := a.showEvent(e); err != nil {
			return since, err
		}
	}
	return since, nil
}

// startOf returns when the agent was started. The time tells one run of the agent from another.
func startOf(ctx context.Context, c *client.Client) (time.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, quick)
	defer cancel()
	st, err := c.Status(ctx, "")
	var cannot *api.Error
	if errors.As(err, &cannot) && !st.Started.IsZero() { // the agent cannot attach pods, but its status is complete
		err = nil
	}
	return st.Started, err
}

func wait(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// eventInks are the colours of events that people should see.
var eventInks = map[string]ink{
	api.EventAttaching: yellow, api.EventAttached: green, api.EventReleasing: yellow, api.EventReleased: green,
	api.EventOwed: red, api.EventDrift: red, api.EventExhausted: red, api.EventMended: green,
}

// showEvent prints an event on a line.
func (a *app) showEvent(e api.Event) error {
	if a.output == "json" {
		return json.NewEncoder(a.stdout).Encode(e)
	}
	what := []string{"the agent itself"}
	if at := e.Attachment; at != nil {
		what = []string{subject(*at), at.Ifname, strings.Join(at.Addresses, ",")}
	}
	if e.Message != "" {
		what = append(what, e.Message)
	}
	pad := strings.Repeat(" ", max(0, len(api.EventAttaching)-len(e.Type)))
	a.say("%6d  %s  %s%s  %-10s  %s\n", e.Seq, e.Time.Local().Format("15:04:05.000"), a.ink(eventInks[e.Type], e.Type), pad,
		e.Owner, oneLine(errors.New(strings.Join(what, "  "))))
	return nil
}

package client

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/url"
	"strconv"

	"github.com/berth-net/berth/api"
)

// maxLine is how long an event may be, in bytes.
const maxLine = 1 << 20

// Events follows what happens. since is the number of the last event that is
// known already; with nil, the stream begins now. When heard is not nil, it is
// called once the agent has begun to answer: later events are not missed.
//
// A stream that the agent ends has a last event of type end. Without that, the
// last element is an error: the context's, the agent's or ErrAway.
func (c *Client) Events(ctx context.Context, since *uint64, heard func()) iter.Seq2[api.Event, error] {
	return func(yield func(api.Event, error) bool) {
		q := url.Values{}
		if since != nil {
			q.Set("since", strconv.FormatUint(*since, 10))
		}
		ctx, cancel := context.WithCancel(ctx)
		defer cancel() // a caller that breaks off ends the stream
		resp, err := c.send(ctx, "GET", api.PathEvents, q, nil)
		if err != nil {
			yield(api.Event{}, err)
			return
		}
		defer resp.Body.Close()
		if resp.StatusCode >= 400 {
			raw, err := io.ReadAll(io.LimitReader(resp.Body, maxLine))
			if err == nil {
				err = failure(resp.StatusCode, raw, nil)
			}
			yield(api.Event{}, err)
			return
		}
		if heard != nil {
			heard()
		}
		c.lines(ctx, resp.Body, yield)
	}
}

// lines yields the event of each line.
func (c *Client) lines(ctx context.Context, body io.Reader, yield func(api.Event, error) bool) {
	lines := bufio.NewScanner(body)
	lines.Buffer(nil, maxLine)
	for lines.Scan() {
		if len(lines.Bytes()) == 0 { // the stream is alive
			continue
		}
		var e api.Event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			yield(e, fmt.Errorf("decoding an event: %w", err))
			return
		}
		if !yield(e, nil) || e.Type == "end" {
			return
		}
	}
	err := lines.Err()
	if err == nil {
		err = errors.New("the stream ended without a last line")
	}
	yield(api.Event{}, c.broken(ctx, err))
}

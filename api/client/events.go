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

// Events follows the agent's events. since is the number of the last event that the caller
// knows already; if it is nil, the stream begins now. If heard is not nil, Events calls it
// once the agent has begun to answer: from then on no event is missed.
//
// If the agent ends the stream, the last event has type end. Otherwise the last element is
// an error: the context's, the agent's or ErrAway.
func (c *Client) Events(ctx context.Context, since *uint64, heard func()) iter.Seq2[api.Event, error] {
	return func(yield func(api.Event, error) bool) {
		q := url.Values{}
		if since != nil {
			q.Set("since", strconv.FormatUint(*since, 10))
		}
		ctx, cancel := context.WithCancel(ctx)
		defer cancel() // if the caller breaks off, this ends the stream
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
		if len(lines.Bytes()) == 0 { // only says that the stream is alive
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
		err = errors.New("the agent's event stream broke off")
	}
	yield(api.Event{}, c.broken(ctx, err))
}

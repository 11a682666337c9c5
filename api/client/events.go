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

// maxLine is how long a line of a stream may be, in bytes.
const maxLine = 1 << 20

// Events follows the agent's events. since is the number of the last event that the caller
// knows already; if since is nil, the stream begins now. If heard is not nil, Events calls heard
// once the agent has begun to answer: from then on no event is missed.
//
// If the agent ends the stream, the last event has type end. Otherwise the last element is
// an error: the context's, the agent's or ErrAway.
func (c *Client) Events(ctx context.Context, since *uint64, heard func()) iter.Seq2[api.Event, error] {
	q := url.Values{}
	if since != nil {
		q.Set("since", strconv.FormatUint(*since, 10))
	}
	return func(yield func(api.Event, error) bool) {
		for e, err := range lines[api.Event](ctx, c, api.PathEvents, q, heard) {
			if !yield(e, err) || err != nil || e.Type == "end" {
				return
			}
		}
	}
}

// lines yields the value of each line of a stream. If heard is not nil, lines calls it once the
// agent has begun to answer. A stream ends by a value that says so, on which the caller breaks
// off. If the stream ends before such a value, the last element is an error.
func lines[T any](ctx context.Context, c *Client, path string, q url.Values, heard func()) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		var none T
		ctx, cancel := context.WithCancel(ctx)
		defer cancel() // if the caller breaks off, this ends the stream
		resp, err := c.send(ctx, "GET", path, q, nil)
		if err != nil {
			yield(none, err)
			return
		}
		defer resp.Body.Close()
		if resp.StatusCode >= 400 {
			raw, err := io.ReadAll(io.LimitReader(resp.Body, maxLine))
			if err == nil {
				err = failure(resp.StatusCode, raw, nil)
			}
			yield(none, err)
			return
		}
		if heard != nil {
			heard()
		}
		in := bufio.NewScanner(resp.Body)
		in.Buffer(nil, maxLine)
		for in.Scan() {
			if len(in.Bytes()) == 0 { // an empty line only says that the stream is alive
				continue
			}
			var v T
			if err := json.Unmarshal(in.Bytes(), &v); err != nil {
				yield(v, fmt.Errorf("decoding a line of %s: %w", path, err))
				return
			}
			if !yield(v, nil) {
				return
			}
		}
		err = in.Err()
		if err == nil {
			err = errors.New("the agent's stream broke off")
		}
		yield(none, c.broken(ctx, err))
	}
}

// Package client talks to an agent over its unix socket: a method for each verb, which tells
// the agent the deadline of the method's context.
//
// Errors of the agent are *api.Error; ErrAway says that there is no agent.
package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"strconv"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/boottime"
)

// maxAnswer is how large an answer may be, in bytes: a ledger of many thousand
// owners is some tens of MB.
const maxAnswer = 256 << 20

// Client talks to one agent. Several goroutines may call its methods at the same time.
type Client struct {
	socket string
	http   http.Client
}

// New returns a client of the agent that listens, or will listen, on a socket.
func New(socket string) *Client {
	return &Client{socket: socket, http: http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return Dial(ctx, socket)
		},
		DisableCompression:  true,
		MaxIdleConnsPerHost: 16,
	}}}
}

// beganKey is the context key of Began.
type beganKey struct{}

// Began returns a context whose requests count as begun now, whenever they are sent. It is
// for a caller that deletes by an earlier answer, such as a list: if it calls Began before
// it asks for the list, the deletion spares what has been attached since.
func Began(ctx context.Context) context.Context {
	return context.WithValue(ctx, beganKey{}, boottime.Now())
}

// Close closes connections that are kept for further requests.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// do sends a request and decodes its answer into out. From an error's answer, it decodes
// the status if out is an *api.Status.
func (c *Client) do(ctx context.Context, method, path string, query url.Values, in, out any) error {
	resp, err := c.send(ctx, method, path, query, in)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return c.broken(ctx, err)
	}
	if resp.StatusCode >= 400 {
		return failure(resp.StatusCode, raw, out)
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(raw, out); err != nil {
		return fmt.Errorf("decoding the agent's answer to %s %s: %w", method, path, err)
	}
	return nil
}

// send sends a request and returns its answer, which may be an error's.
func (c *Client) send(ctx context.Context, method, path string, query url.Values, in any) (*http.Response, error) {
	var body io.Reader
	if in != nil {
		raw, err := json.Marshal(in)
		if err != nil {
			return nil, fmt.Errorf("encoding %s %s: %w", method, path, err)
		}
		body = bytes.NewReader(raw)
	}
	to := url.URL{Scheme: "http", Host: "berthd", Path: path, RawQuery: query.Encode()}
	req, err := http.NewRequestWithContext(ctx, method, to.String(), body)
	if err != nil {
		return nil, fmt.Errorf("making %s %s: %w", method, path, err)
	}
	if in != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	started, ok := ctx.Value(beganKey{}).(int64)
	if !ok {
		started = boottime.Now()
	}
	req.Header.Set(api.HeaderStarted, strconv.FormatInt(started, 10))
	if deadline, ok := ctx.Deadline(); ok {
		req.Header.Set(api.HeaderDeadline, strconv.FormatInt(boottime.At(deadline), 10))
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, c.broken(ctx, errors.Unwrap(err)) // without *url.Error's made-up URL
	}
	return resp, nil
}

// broken returns why no answer came: the caller's context ended, or the agent is away.
func (c *Client) broken(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("waiting for the agent at %s: %w", c.socket, ctx.Err())
	}
	if errors.Is(err, ErrAway) || errors.Is(err, fs.ErrPermission) {
		return err
	}
	return fmt.Errorf("%w at %s: %w", ErrAway, c.socket, err)
}

// failure returns the error in an answer. If out is an *api.Status, the answer's status
// goes into it.
func failure(status int, raw []byte, out any) error {
	e := new(api.Error)
	if err := json.Unmarshal(raw, e); err != nil || e.Code == 0 {
		return fmt.Errorf("the agent answers HTTP status %d: %.200q", status, raw)
	}
	if st, ok := out.(*api.Status); ok {
		full := api.StatusError{Status: st}
		_ = json.Unmarshal(raw, &full) // the same bytes as above; their status may be absent
	}
	return e
}

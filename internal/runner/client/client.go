// Package client has berth-runner run CNI plugins. Exec does so for libcni.
//
// Refusals of the runner are *api.Error; ErrAway says that there is no runner. Either is within an *UnstartedError if no plugin was executed.
package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"time"

	"github.com/berth-net/berth/api"
	agent "github.com/berth-net/berth/api/client"
	"github.com/berth-net/berth/internal/runner/wire"
)

// ErrAway says that no berth-runner answered: there is no socket, nobody listens on it, or the connection
// broke before the answer. In the last case the plugin may have run, and does not run any more: a runner
// that ends takes its plugins along.
var ErrAway = errors.New("no berth-runner answers")

// UnstartedError says that no plugin was executed: berth-runner refused the request, or nobody listens on its socket.
type UnstartedError struct{ Err error }

func (e *UnstartedError) Error() string { return e.Err.Error() }

func (e *UnstartedError) Unwrap() error { return e.Err }

// Unstarted says that no plugin was executed.
func (e *UnstartedError) Unstarted() {}

// maxAnswer is how large an answer may be, in bytes: some of stdout and stderr, in base64.
const maxAnswer = 64 << 20

// Client talks to one runner. Several goroutines may call its methods at the same time.
type Client struct {
	socket string
	http   http.Client
}

// New returns a client of the runner that listens, or will listen, on a socket.
func New(socket string) *Client {
	return &Client{socket: socket, http: http.Client{Transport: &http.Transport{
		DialContext:         func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx, socket) },
		DisableCompression:  true,
		MaxIdleConnsPerHost: 16,
	}}}
}

// dial connects to a socket, however long its path is. Its errors are *UnstartedError.
func dial(ctx context.Context, socket string) (net.Conn, error) {
	path, done, err := agent.Reachable(socket)
	if err != nil {
		return nil, &UnstartedError{err}
	}
	defer done()
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", path)
	if err != nil {
		return nil, &UnstartedError{err}
	}
	return conn, nil
}

// Close closes connections that are kept for further requests.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Run runs a plugin once. When ctx ends, the runner kills the plugin, or does not start it. A request
// without a timeout has as much time as ctx, and at most wire.MaxTimeout.
func (c *Client) Run(ctx context.Context, req wire.Request) (*wire.Answer, error) {
	if req.Timeout == 0 {
		req.Timeout = wire.MaxTimeout
		if end, ok := ctx.Deadline(); ok {
			req.Timeout = max(1, min(req.Timeout, time.Until(end)))
		}
	}
	a := new(wire.Answer)
	if err := c.ask(ctx, wire.PathRun, req, a); err != nil {
		return nil, err
	}
	return a, nil
}

// Find returns the path of a plugin in one of folders, as the runner sees them.
func (c *Client) Find(ctx context.Context, plugin string, folders []string) (string, error) {
	var found wire.Found
	err := c.ask(ctx, wire.PathFind, wire.Find{Type: plugin, Folders: folders}, &found)
	return found.Path, err
}

// ask sends a request and decodes its answer.
func (c *Client) ask(ctx context.Context, path string, in, out any) error {
	raw, err := json.Marshal(in)
	if err != nil {
		return fmt.Errorf("encoding a request to berth-runner: %w", err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://berth-runner"+path, bytes.NewReader(raw))
	if err != nil {
		return fmt.Errorf("making a request to berth-runner: %w", err)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return c.broken(ctx, errors.Unwrap(err)) // without *url.Error's made-up URL
	}
	defer resp.Body.Close()
	raw, err = io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return c.broken(ctx, err)
	}
	if resp.StatusCode >= 400 {
		e := new(api.Error)
		if err := json.Unmarshal(raw, e); err != nil || e.Code == 0 {
			return fmt.Errorf("berth-runner answers HTTP status %d: %.200q", resp.StatusCode, raw)
		}
		if slices.Contains([]string{wire.MsgAbsent, wire.MsgUnrunable, wire.MsgNoTurn}, e.Msg) {
			return &UnstartedError{e}
		}
		return e
	}
	if err := json.Unmarshal(raw, out); err != nil {
		return fmt.Errorf("decoding berth-runner's answer: %w", err)
	}
	return nil
}

// broken returns why no answer came: the caller's context ended, or the runner is away.
func (c *Client) broken(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("waiting for berth-runner at %s: %w", c.socket, ctx.Err())
	}
	return fmt.Errorf("%w at %s: %w", ErrAway, c.socket, err)
}

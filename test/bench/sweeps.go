package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/root"
)

// sweepEvery is the shortest time between two sweeps that an agent's configuration allows.
const sweepEvery = time.Second

// sweeps makes the agent sweep more often than by default, and returns the processor time of each
// sweep, for a number of sweeps (rounds). The processor time of a sweep is the time that the agent
// took in an interval of sweepEvery.
func (a *agent) sweeps(ctx context.Context, rounds int) (each []time.Duration, err error) {
	if err := a.configure(fmt.Sprintf("sweepInterval: %s\n", sweepEvery)); err != nil {
		return nil, err
	}
	begun, err := a.swept(ctx)
	for done := begun; err == nil && done < begun+2; { // the first sweep may have begun before swept counted
		if err = sleepFor(ctx, sweepEvery/10); err == nil {
			done, err = a.swept(ctx)
		}
	}
	if err != nil {
		return nil, err
	}
	if err := sleepFor(ctx, sweepEvery/2); err != nil { // so that intervals do not begin in the middle of a sweep
		return nil, err
	}
	if begun, err = a.swept(ctx); err != nil {
		return nil, err
	}
	for range rounds {
		_, spent, err := a.spends(func() (f apiFigures, err error) { return f, sleepFor(ctx, sweepEvery) })
		if err != nil {
			return nil, err
		}
		each = append(each, spent)
	}
	done, err := a.swept(ctx)
	if err != nil {
		return nil, err
	}
	if n := int(done - begun); n < rounds-1 || n > rounds+1 {
		return nil, fmt.Errorf("%d sweeps in %d times %s", n, rounds, sweepEvery)
	}
	return each, a.configure("")
}

// configure writes the agent's configuration, and has the agent read it.
func (a *agent) configure(yaml string) error {
	file := root.Dir(a.Root).Config()
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return err
	}
	if err := os.WriteFile(file, []byte(yaml), 0o600); err != nil {
		return err
	}
	return a.Signal(unix.SIGHUP)
}

// swept returns how many sweeps and audits the agent has made, by its metrics.
func (a *agent) swept(ctx context.Context) (uint64, error) {
	socket := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", root.Dir(a.Root).Socket())
	}
	transport := &http.Transport{DialContext: socket}
	defer transport.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://berth"+api.PathMetrics, nil)
	if err != nil {
		return 0, err
	}
	res, err := transport.RoundTrip(req)
	if err != nil {
		return 0, fmt.Errorf("reading the agent's metrics: %w", err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		return 0, fmt.Errorf("reading the agent's metrics: %w", err)
	}
	_, after, found := strings.Cut(string(text), `berth_operation_duration_seconds_count{kind="link",op="find"} `)
	if !found {
		return 0, nil // there was no sweep yet
	}
	count, _, _ := strings.Cut(after, "\n")
	return strconv.ParseUint(count, 10, 64)
}

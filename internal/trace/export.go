package trace

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"time"
)

// The pause after an export that failed, at first and at most. Spans that find no room
// meanwhile are dropped.
const (
	again = time.Second
	later = time.Minute
)

// Keep exports spans until ctx ends, and then those that wait, within lastWords. Nothing but
// spans is lost if the endpoint hangs, refuses or is slow: nobody waits for Keep, and no export
// is repeated.
func (t *Tracer) Keep(ctx context.Context) {
	pause := again
	for {
		batch := t.next(ctx)
		if ctx.Err() != nil {
			t.last(batch)
			return
		}
		if t.export(ctx, batch) {
			pause = again
			continue
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
		pause = min(2*pause, later)
	}
}

// next waits for a span, and then a while for others.
func (t *Tracer) next(ctx context.Context) (batch []*Span) {
	select {
	case s := <-t.queue:
		batch = append(batch, s)
	case <-ctx.Done():
		return nil
	}
	enough := time.NewTimer(linger)
	defer enough.Stop()
	for len(batch) < perExport {
		select {
		case s := <-t.queue:
			batch = append(batch, s)
		case <-enough.C:
			return batch
		case <-ctx.Done():
			return batch
		}
	}
	return batch
}

// last exports what waits at the end, in one go.
func (t *Tracer) last(batch []*Span) {
	for len(t.queue) > 0 {
		batch = append(batch, <-t.queue)
	}
	if len(batch) == 0 {
		return
	}
	if t.failing { // another export would only make the daemon's end longer
		t.dropped.Add(uint64(len(batch)))
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), lastWords)
	defer cancel()
	t.export(ctx, batch)
}

// export sends spans, and counts them. It returns whether the endpoint has taken them.
func (t *Tracer) export(ctx context.Context, batch []*Span) bool {
	err := t.send(ctx, batch)
	if err != nil {
		t.dropped.Add(uint64(len(batch)))
	} else {
		t.exported.Add(uint64(len(batch)))
	}
	if err != nil && !t.failing && t.Log != nil {
		t.Log.Warn("spans are lost, because the endpoint for traces does not take them", "endpoint", t.Endpoint, "err", err)
	} else if err == nil && t.failing && t.Log != nil {
		t.Log.Info("the endpoint for traces takes spans again", "endpoint", t.Endpoint)
	}
	t.failing = err != nil
	return err == nil
}

func (t *Tracer) send(ctx context.Context, batch []*Span) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	body, err := t.encode(batch)
	if err != nil {
		return fmt.Errorf("encoding spans: %w", err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, t.Endpoint, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("exporting spans: %w", err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := t.client.Do(req)
	if err != nil {
		return fmt.Errorf("exporting spans: %w", err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, 64<<10)) // all of it, so that the connection can be used again
	switch {
	case resp.StatusCode != http.StatusOK:
		return fmt.Errorf("exporting spans: %s: %.200q", resp.Status, answer)
	case err != nil:
		return fmt.Errorf("exporting spans: %w", err)
	}
	return nil
}

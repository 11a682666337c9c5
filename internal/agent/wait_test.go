package agent

import (
	"bytes"
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/turn"
)

// A deletion that waits for a pod with an owed hold takes up no place among the agent's requests. The
// agent does other pods' deletions meanwhile, and answers the waiting deletion when all of its pod is
// gone.
func TestWaitingDeletionsKeepNoPlace(t *testing.T) {
	const many = 8
	r, b := startBreakable(t)
	r.add(request("bad", nettest.Pod(t)))
	r.add(request("good", nettest.Pod(t)))
	b.set(true, "release", "link", r.id("bad"))
	r.close()
	o, err := r.options()
	must(t, err)
	o.Config.Concurrency = 4 // 3 places for deletions
	r.live(o, nil)
	defer b.heal()
	c := r.serving()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	answers := make(chan error, many)
	for range many {
		go func() {
			d, err := c.Delete(ctx, key("bad"), true)
			if err == nil && (d.Released != 1 || d.Owed > 0) {
				err = fmt.Errorf("it is gone, and the answer is %+v", d)
			}
			answers <- err
		}()
	}
	nettest.Eventually(t, "all wait aside", func() bool {
		text, err := c.Metrics(ctx)
		return err == nil && bytes.Contains(text, fmt.Appendf(nil, "\nberth_requests_aside %d\n", many))
	})
	if d, err := c.Delete(ctx, key("good"), true); err != nil || d.Owed != 0 {
		t.Errorf("the deletion of another pod: %+v, %v", d, err)
	}
	if l, err := c.List(ctx, key("good")); err != nil || len(l) != 0 {
		t.Errorf("behind its deletion: %+v, %v", l, err)
	}
	if len(answers) != 0 {
		t.Errorf("%d are answered while the pod owes something", len(answers))
	}
	b.heal()
	_, err = c.RetryOwed(ctx)
	must(t, err)
	for range many {
		if err := <-answers; err != nil {
			t.Error(err)
		}
	}
}

// If a deletion cannot wait aside, or is told to end, the agent answers it when every release
// has been tried once.
func TestDeletionThatMayNotWait(t *testing.T) {
	ended := make(chan struct{})
	close(ended)
	for what, p := range map[string]turn.Place{
		"too many wait": {Leave: func() (func(), bool) { return func() {}, false }},
		"the agent is stopping": {
			Leave: func() (func(), bool) { return func() {}, true },
			Ended: ended, Why: context.Canceled,
		},
	} {
		t.Run(what, func(t *testing.T) {
			r, b := startBreakable(t)
			for _, c := range []string{"good", "bad"} {
				r.add(request(c, nettest.Pod(t)))
			}
			b.set(true, "release", "link", r.id("bad"))
			defer b.heal()
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			ctx = turn.WithPlace(ctx, p)
			for c, owed := range map[string]int{"good": 0, "bad": 1} {
				if d, _, err := r.Delete(ctx, key(c), true, now()); err != nil || d.Owed != owed || ctx.Err() != nil {
					t.Errorf("%s: %+v, %v; the time is up: %v", c, d, err, ctx.Err())
				}
				if left := len(r.List(key(c))); left != owed {
					t.Errorf("%s: %d attachments are left", c, left)
				}
			}
		})
	}
}

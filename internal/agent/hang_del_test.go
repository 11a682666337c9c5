package agent

import (
	"context"
	"testing"
	"time"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/nettest"
)

// An ADD that hangs, and ignores its context, holds up only its own pod: the agent does queued
// deletions of other pods, and sweeps end.
func TestHangingAddKeepsNoDeletion(t *testing.T) {
	r := start(t)
	good, better := nettest.Pod(t), nettest.Pod(t)
	r.add(request("good", good))
	r.add(request("better", better))
	r.close()
	reached, heal := make(chan struct{}), make(chan struct{})
	o, err := r.options()
	must(t, err)
	o.Config.SweepInterval = 50 * time.Millisecond
	var first = true
	o.Decorate = change("link", func(k *hold.Kind) {
		acquire := k.Acquire
		k.Acquire = func(ctx context.Context, h hold.Hold) error {
			if first {
				first = false
				close(reached)
				<-heal // whatever the context says
			}
			return acquire(ctx, h)
		}
	})
	r.live(o, nil)
	defer close(heal)
	c := r.serving()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		ctx, cancel := context.WithTimeout(t.Context(), 40*time.Second)
		defer cancel()
		_, _ = c.Add(ctx, request("bad", nettest.Pod(t)))
	}()
	<-reached
	r.enqueue(r.deletion("bad", ""))
	nettest.Eventually(t, "bad's deletion is promised", func() bool {
		l, err := c.List(t.Context(), key("bad"))
		return err == nil && len(l) == 1 && l[0].Releasing != nil
	})
	for _, other := range []string{"good", "better"} { // a sweep may do one of the deletions, and then hang as well
		r.enqueue(r.deletion(other, ""))
		nettest.Eventually(t, other+" is gone", func() bool {
			l, err := c.List(t.Context(), key(other))
			return err == nil && len(l) == 0
		})
	}
	nettest.Eventually(t, "no deletion waits", func() bool { return r.queued() == 0 })
}

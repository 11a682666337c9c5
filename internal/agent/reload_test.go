package agent

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"

	"github.com/berth-net/berth/internal/nettest"
)

// What the log says of a new configuration: refused is one of which nothing is
// in force; what only failed is in force all the same.
func TestSettle(t *testing.T) {
	r := newRig(t, "default=10.88.0.0/24")
	b := newBreaker()
	r.decorate = b.decorate
	o, err := r.options()
	must(t, err)
	var said bytes.Buffer
	o.Log = slog.New(slog.NewTextHandler(&said, nil))
	if r.Agent, err = Open(o); err != nil {
		t.Fatal(err)
	}
	must(t, r.Restore(t.Context()))
	defer func() { r.releaseAll(); r.remove(context.Background()); r.close() }()
	r.add(request("c", nettest.Pod(t)))

	for _, step := range []struct {
		pool    string
		workers int
		fail    bool
		inForce bool
		want    string
	}{
		{"default=10.88.0.0/25", 64, false, false, "refuses the new configuration, and keeps"},
		{"default=10.89.0.0/24", 64, true, true, "in force, except for what failed"},
		{"default=10.89.0.0/24", 64, false, true, "the new configuration is in force\""},
		{"default=10.89.0.0/24", 65, false, true, "berthd reads only when it starts\" keys=[concurrency]"},
	} {
		said.Reset()
		r.pools = []string{step.pool}
		b.set(step.fail, "acquire", "poolroute", "")
		c, err := r.conf()
		must(t, err)
		c.Concurrency = step.workers
		got := r.ground.Settle(t.Context(), c)
		if in := r.ground.Config() == c; got != step.inForce || in != got || !strings.Contains(said.String(), step.want) {
			t.Errorf("%s: %t, in force %t; it says\n%s", step.pool, got, in, said.String())
		}
		if strings.Contains(said.String(), "keys") != (step.workers != 64) {
			t.Errorf("%s: what waits for a start:\n%s", step.pool, said.String())
		}
	}
}

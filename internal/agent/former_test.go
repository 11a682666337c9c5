package agent

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/nettest"
)

// An agent begins with another configuration, or another version, and so with other rules: it says in
// a line that it has replaced the table of the former run. If there is no table any more, somebody has
// taken it away, and the agent says so.
func TestTableOfAFormerRun(t *testing.T) {
	r := start(t)
	r.add(request("c", nettest.Pod(t)))
	for _, c := range []struct {
		name      string
		meanwhile func()
		says      string
		events    int
	}{
		{"nothing changes", func() {}, "", 0},
		{"another pool", func() { r.pools = append(r.pools, "more=10.99.0.0/24") }, "replaced the nftables table of a former run", 0},
		{"the table is gone", func() { flushTables(t) }, "mended what had changed", 2},
	} {
		r.close()
		c.meanwhile()
		o, err := r.options()
		must(t, err)
		var said strings.Builder
		o.Log = slog.New(slog.NewTextHandler(&said, nil))
		events := 0
		o.Event = func(ev api.Event) {
			if ev.Type == api.EventDrift || ev.Type == api.EventMended {
				events++
			}
		}
		r.Agent, err = Open(o)
		must(t, err)
		must(t, r.Restore(t.Context()))
		if log := said.String(); !strings.Contains(log, c.says) || c.says == "" && strings.Contains(log, "table") || events != c.events || len(log) > 1000 {
			t.Errorf("%s: %d events, and the log has\n%s", c.name, events, log)
		}
		r.wantClean()
	}
}

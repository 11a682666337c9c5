package agent

import (
	"encoding/json"
	"log/slog"
	"os"
	"strings"
	"testing"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/ledger"
	"github.com/berth-net/berth/internal/nettest"
)

// An audit and the status find that somebody has taken the ledger's file away from a running agent, and
// the sweep logs that once. Otherwise only the next start would find the loss. DEL goes on.
func TestAuditMissesItsLedger(t *testing.T) {
	r := start(t)
	var said strings.Builder
	r.core.Log = slog.New(slog.NewTextHandler(&said, nil))
	r.add(request("c", nettest.Pod(t)))
	path := r.root.Ledger()
	raw, err := os.ReadFile(path)
	must(t, err)
	found := func(says string) {
		t.Helper()
		a, err := r.Audit(t.Context())
		if err != nil || len(a.Findings) != 1 || a.Findings[0].Type != "missing" || a.Findings[0].Kind != "ledger" ||
			!strings.Contains(a.Findings[0].Detail, says) {
			t.Errorf("%v, %+v; want one finding that says %q", err, a.Findings, says)
		}
		if st, err := r.Status(t.Context(), ""); err != nil || !strings.Contains(st.Displaced, says) {
			t.Errorf("%v, the status says %q; want %q", err, st.Displaced, says)
		}
		r.Sweep(t.Context())
	}
	r.wantClean()
	must(t, os.Rename(path, path+".away"))
	found("no such file")
	must(t, os.WriteFile(path, raw, 0o600))
	found("another file")
	r.del("c", true)
	must(t, os.Rename(path+".away", path))
	r.wantClean()
	r.Sweep(t.Context())
	if st, err := r.Status(t.Context(), ""); err != nil || st.Displaced != "" {
		t.Errorf("%v, the status says %q of a ledger that is back", err, st.Displaced)
	}
	if log := said.String(); strings.Count(log, `level=WARN msg="somebody has taken the ledger's file away`) != 1 ||
		strings.Count(log, "in its place again") != 1 {
		t.Errorf("the log has\n%s", log)
	}
}

// A ledger's file that the agent itself has written anew is no finding.
func TestAuditKnowsANewFile(t *testing.T) {
	r := start(t)
	r.add(request("c", nettest.Pod(t)))
	before, err := os.Stat(r.root.Ledger())
	must(t, err)
	meta := json.RawMessage(`{"pad":"` + strings.Repeat("m", 200<<10) + `"}`)
	nettest.Eventually(t, "the ledger is written anew", func() bool {
		id := hold.NewID()
		must(t, r.core.Ledger.Commit(t.Context(), ledger.Begin(hold.Owner{ID: id, Meta: meta})))
		must(t, r.core.Ledger.Commit(t.Context(), ledger.Forget(id, r.core.Clock.Now())))
		return r.core.Ledger.Stats().Rewrites > 0
	})
	after, err := os.Stat(r.root.Ledger())
	must(t, err)
	if os.SameFile(before, after) {
		t.Error("it is the same file")
	}
	r.wantClean()
}

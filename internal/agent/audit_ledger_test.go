package agent

import (
	"os"
	"strings"
	"testing"

	"github.com/berth-net/berth/internal/nettest"
)

// A ledger that was taken away from under the agent is found, before a restart
// finds that it is lost.
func TestAuditMissesItsLedger(t *testing.T) {
	r := start(t)
	r.add(request("c", nettest.Pod(t)))
	path := r.root.Ledger()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	found := func(says string) {
		t.Helper()
		a, err := r.Audit(t.Context())
		if err != nil || len(a.Findings) != 1 || a.Findings[0].Type != "missing" || a.Findings[0].Kind != "ledger" ||
			!strings.Contains(a.Findings[0].Detail, says) {
			t.Errorf("%v, %+v; want one finding that says %q", err, a.Findings, says)
		}
	}
	r.wantClean()
	if err := os.Rename(path, path+".away"); err != nil {
		t.Fatal(err)
	}
	found("no such file")
	if err := os.WriteFile(path, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	found("another file")
	if err := os.Rename(path+".away", path); err != nil {
		t.Fatal(err)
	}
	r.wantClean()
}

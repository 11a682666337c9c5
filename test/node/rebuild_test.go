package node

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/test/programs"
)

// The ledger is lost under running pods. berthd refuses to start over them;
// rebuilt, it says what it adopted and what is lost, and goes on. The pods reach
// each other all the time, and their DELs leave nothing.
func TestRebuildLedger(t *testing.T) {
	a := startAgent(t, pools)
	ps, got := a.podsOf(3)
	still := func() {
		t.Helper()
		pingAll(t, ps[0], got[1])
		pingAll(t, ps[1], got[0])
	}
	a.kill()
	if err := os.Remove(a.root.Ledger()); err != nil {
		t.Fatal(err)
	}
	a.refused("ledger is lost", "3 links", "--rebuild-ledger")
	a.refused("ledger is lost") // and an empty one was not left
	still()

	cmd := a.berthd("--rebuild-ledger")
	var out, log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &log
	if err := runFor(cmd); err != nil {
		t.Fatalf("berthd --rebuild-ledger: %v\n%s", err, log.String())
	}
	for _, want := range []string{"net/c0/eth0", "net/c1/eth0", "net/c2/eth0", "default", ps[0].Ref().Path, "3 attachments adopted", "No other address is given out until", "DNS"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the table lacks %q:\n%s", want, out.String())
		}
	}
	if !strings.Contains(log.String(), "lost with the ledger") {
		t.Errorf("the log does not say what is lost:\n%s", log.String())
	}
	still()
	a.start()
	still()
	a.wantClean()
	if n := len(a.list()); n != 3 {
		t.Errorf("%d attachments", n)
	}
	_, err := a.tryAdd("new", nettest.Pod(t))
	programs.WantError(t, err, 100, "the ledger was lost")
	a.del("c2")
	a.kill()
	a.start()
	_, err = a.tryAdd("new", nettest.Pod(t)) // the quarantine outlives a restart
	programs.WantError(t, err, 100, "the ledger was lost")
	still()
	a.del("c0")
	a.del("c1")
	a.wantGone()
}

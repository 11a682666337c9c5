package agent

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/berth-net/berth/api/client"
	"github.com/berth-net/berth/internal/daemon"
	"github.com/berth-net/berth/internal/ledger"
	"github.com/berth-net/berth/internal/nettest"
)

// An agent that cannot write its ledger any more ends at once, so that its supervisor starts it
// anew: without a ledger the agent could promise not even a deletion.
func TestFailedLedgerEndsTheAgent(t *testing.T) {
	r := newRig(t)
	before := nettest.Snapshot(t, nil).Without("sysctl")
	conf, err := r.conf()
	must(t, err)
	conf.SweepInterval = time.Hour // it is not the sweep that notices
	ended := make(chan error, 1)
	go func() {
		ended <- Run(context.Background(), Options{Config: conf, Options: daemon.Options{Root: r.root, Log: slog.New(slog.NewTextHandler(t.Output(), nil))}}, nil)
	}()
	c := client.New(r.root.Socket())
	defer c.Close()
	nettest.Eventually(t, "the agent serves", func() bool {
		h, err := c.Health(t.Context())
		return err == nil && h.Serving
	})
	whole, err := os.ReadFile(r.root.Ledger())
	must(t, err)
	must(t, os.Truncate(r.root.Ledger(), 8192))
	if _, err := c.Delete(t.Context(), key("c"), false); err == nil || client.IsUnknown(err) {
		t.Errorf("a deletion whose tombstone cannot be written: %v", err)
	}
	if err := <-ended; !errors.Is(err, ledger.ErrFailed) {
		t.Errorf("the agent ended with %v, want %v", err, ledger.ErrFailed)
	}
	// An agent that has its ledger back goes on.
	must(t, os.WriteFile(r.root.Ledger(), whole, 0o600))
	r.bringUp()
	defer r.close()
	must(t, r.remove(t.Context()))
	nettest.Same(t, before, nettest.Snapshot(t, nil).Without("sysctl"), "residue")
}

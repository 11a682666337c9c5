package agent

import (
	"context"
	"os"
	"testing"

	"github.com/berth-net/berth/internal/kernel/conntrack"
	"github.com/berth-net/berth/internal/kernel/nft"
	"github.com/berth-net/berth/internal/kinds"
	"github.com/berth-net/berth/internal/nettest"
)

// exposed is connection tracking that tells of each pass for exposed connections.
type exposed struct {
	kinds.Tracked
	passes chan bool // whether the rules were missing
}

func (e exposed) ForgetExposed(r conntrack.Rules) error {
	e.passes <- r.Missed
	return e.Tracked.ForgetExposed(r)
}

// pass makes the pass over connection tracking that a started agent makes, and returns whether the
// agent took the rules for having been missing.
func (r *rig) pass() (missed bool) {
	r.t.Helper()
	kernel := r.node.Tracked
	told := exposed{kernel, make(chan bool, 1)}
	r.node.Tracked = told
	ctx, cancel := context.WithCancel(r.t.Context())
	ended := make(chan struct{})
	r.traffic.Unwatched()
	go func() { r.traffic.KeepHidden(ctx); close(ended) }()
	missed = <-told.passes
	if missed {
		nettest.Eventually(r.t, "the mark to be gone after the pass", func() bool { return !r.marked() })
	}
	cancel()
	<-ended
	r.node.Tracked = kernel
	return missed
}

func (r *rig) marked() bool {
	_, err := os.Lstat(r.root.Missed())
	return err == nil
}

// Somebody deletes the table while no agent runs. An agent puts it back, and ends before its pass over
// connection tracking: the next agent, which finds the table as it should be, makes that pass for it.
func TestMissedTableOutlivesTheAgent(t *testing.T) {
	r := start(t)
	r.pass() // the first agent found no table, either
	r.restart()
	if r.pass() {
		t.Error("an agent takes a table that nobody touched for missing")
	}
	must(t, nft.Open(r.node.Here).Delete(r.core.Instance))
	r.restart()
	if !r.marked() {
		t.Error("the agent that put the table back leaves no mark")
	}
	r.restart() // without a pass
	if !r.pass() {
		t.Error("the next agent does not know that the table was missing")
	}
	r.restart()
	if r.pass() {
		t.Error("an agent repeats a pass that has succeeded")
	}
}

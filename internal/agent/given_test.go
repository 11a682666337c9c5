package agent

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/berth-net/berth/internal/config"
	"github.com/berth-net/berth/internal/kernel/nft"
	"github.com/berth-net/berth/internal/kinds"
	"github.com/berth-net/berth/internal/nettest"
)

// inCluster tells the rig's agent that it is on a node of a cluster, whose API server nobody asks.
func (r *rig) inCluster() {
	r.t.Helper()
	c := *r.ground.Config()
	c.Kubernetes = &config.Kubernetes{Node: "n"}
	must(r.t, r.ground.Reload(r.t.Context(), &c))
}

var given = config.NodeGiven([]netip.Prefix{netip.MustParsePrefix("10.244.7.0/24"), netip.MustParsePrefix("fd00:244:7::/64")})

// slowTable is a table whose writing, once it has begun, waits until heal is closed.
type slowTable struct {
	kinds.Table
	begun chan struct{} // has a token when writing has begun
	heal  <-chan struct{}
}

func (s *slowTable) SetRuleset(r nft.Ruleset) error { s.wait(); return s.Table.SetRuleset(r) }
func (s *slowTable) Retry() error                   { s.wait(); return s.Table.Retry() }

func (s *slowTable) wait() {
	select {
	case s.begun <- struct{}{}:
	default:
	}
	<-s.heal
}

// Other nodes come while the cluster gives this node its CIDRs, as when a cluster starts. Each waits for the other, and
// none fails.
func TestGivenWhileOthersCome(t *testing.T) {
	r := start(t)
	r.inCluster()
	heal := make(chan struct{})
	slow := &slowTable{r.node.Table, make(chan struct{}, 1), heal}
	r.node.Table = slow
	reached := make(chan struct{})
	go func() { defer close(reached); r.ground.Reach(t.Context()) }()
	<-slow.begun
	soon, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := r.ground.Give(soon, given); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("while the table is being written: %v, want that the time is up", err)
	}
	close(heal)
	must(t, r.ground.Give(t.Context(), given))
	<-reached
	must(t, r.ground.Lacking(config.NodePool))
}

// The table takes too long when the cluster gives the node its CIDRs. The agent is ready for pods when it is told again,
// without a sweep.
func TestGivenAgain(t *testing.T) {
	r := start(t)
	r.inCluster()
	heal := make(chan struct{})
	r.node.Table = &slowTable{r.node.Table, make(chan struct{}, 1), heal}
	if err := r.ground.Give(t.Context(), given); err == nil {
		t.Error("the node's pool is said to be ready while its table is being written")
	}
	close(heal)
	nettest.Eventually(t, "the node's pool to be ready", func() bool { return r.ground.Give(t.Context(), given) == nil })
	must(t, r.ground.Lacking(config.NodePool))
}

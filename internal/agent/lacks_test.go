package agent

import (
	"bytes"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/attachment/verbs"
	"github.com/berth-net/berth/internal/ground"
	"github.com/berth-net/berth/internal/kernel/nft"
	"github.com/berth-net/berth/internal/kinds"
	"github.com/berth-net/berth/internal/kinds/table"
	"github.com/berth-net/berth/internal/mode/modes"
	"github.com/berth-net/berth/internal/nettest"
)

// poorTable is the table on a kernel that lacks some features of the table.
type poorTable struct {
	kinds.Table
	lacks   nft.Parts
	retried int
}

func (p *poorTable) Lacks() nft.Parts { return p.lacks }
func (p *poorTable) Retry() error     { p.retried++; return nil }

// Status, audit and log name each feature that the kernel lacks, until the kernel has it; each
// sweep tries the feature again.
func TestLacks(t *testing.T) {
	r := start(t)
	var said bytes.Buffer
	r.core.Log = slog.New(slog.NewTextHandler(&said, nil))
	poor := &poorTable{Table: r.node.Table}
	r.node.Table = poor
	shows := func(want []string, findings int) {
		t.Helper()
		st, err := r.Status(t.Context(), "")
		if err != nil || !slices.Equal(st.Lacks, want) {
			t.Errorf("the status says it lacks %v, %v, want %v", st.Lacks, err, want)
		}
		audit, err := r.Audit(t.Context())
		if err != nil || len(audit.Findings) != findings {
			t.Fatalf("an audit finds %v, %v", audit.Findings, err)
		}
		for _, f := range audit.Findings {
			if f.Type != api.FindingMissing || f.Kind != table.KindName || !strings.Contains(f.Detail, "nft_connlimit") {
				t.Errorf("an audit finds %+v", f)
			}
		}
	}
	shows(nil, 0)
	poor.lacks = nft.Sources | nft.Limit
	shows([]string{api.LackSources, api.LackConnections}, 1)
	r.ground.SayLacks(poor.lacks)
	if !strings.Contains(said.String(), "level=WARN") || !strings.Contains(said.String(), "nft_fib") {
		t.Errorf("the log says %s", &said)
	}
	for n := range 2 {
		r.Sweep(t.Context())
		if poor.retried != n+1 {
			t.Errorf("tried %d times in %d sweeps", poor.retried, n+1)
		}
	}
	poor.lacks = 0
	shows(nil, 0)
	said.Reset()
	r.ground.SayLacks(0)
	if !strings.Contains(said.String(), "level=INFO") {
		t.Errorf("the log says %s", &said)
	}
}

// Where the kernel cannot map a host port, or the pod's pool lacks the family, the agent refuses a
// pod that asks for a host port, and does not attach the pod without the port. The agent attaches
// other pods.
func TestHostPortsThatCannotBe(t *testing.T) {
	r := start(t, "default=10.88.0.0/24")
	pod := nettest.Pod(t)
	ask := func(more string) api.AddRequest {
		return request("c", pod, `"runtimeConfig":{"portMappings":[{"hostPort":8080,"containerPort":80`+more+`}]}`)
	}
	_, err := r.tryAdd(ask(`,"hostIP":"::"`))
	wantError(t, err, 7, "hostIP is ::; pool default")
	poor := &poorTable{Table: r.node.Table, lacks: nft.HostPorts}
	r.node.Table = poor
	_, all := modes.List(r.core, r.node, r.ground, r.traffic)
	r.Agent.Verbs = verbs.New(&r.core.Core, r.index, r.drain, r.ground, all, r.networks, r.node.OpenNetns)
	_, err = r.tryAdd(ask(""))
	wantError(t, err, 7, "nft_nat")
	if list := r.List(api.Filter{}); len(list) > 0 {
		t.Errorf("refused, and attached: %+v", list)
	}
	r.add(request("c", pod))
	r.del("c", true)
	poor.lacks = 0
	r.add(ask(""))
}

// The present configuration decides which addresses pods may not reach, and how many tracked
// connections one pod may have.
func TestReloadLimits(t *testing.T) {
	r := start(t)
	for _, blocked := range [][]netip.Prefix{nil, {netip.MustParsePrefix("100.64.0.0/10")}} {
		c, err := r.conf()
		must(t, err)
		c.BlockedCIDRs, c.Connections = blocked, len(blocked)*100
		must(t, r.ground.Reload(t.Context(), c))
		want := nft.Ruleset{
			Instance: r.core.Instance, Live: r.node.Groups.Live(), HostPorts: true, Masquerade: true, Pools: c.Pools[0].CIDRs,
			Blocked: blocked, Connections: uint32(c.Connections),
		}
		want.CutLow, want.CutHigh = r.node.Groups.Dying()
		id, _ := r.core.Ledger.Holder(ground.TableName)
		want.Owner = string(id)
		if _, err := nft.Open(r.node.Here).Verify(want); err != nil {
			t.Error(err)
		}
	}
}

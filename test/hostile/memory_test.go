package hostile

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/berth-net/berth/internal/nettest"
)

// What a pod that makes its tables long may cost the agent.
const (
	podRoutes = 300_000
	mostPeak  = 96 << 20 // bytes resident at the worst moment
)

// A pod makes its own routing table long, with routes that say they are Berth's. CHECKs at
// once, and an audit that looks into the pods, keep only the routes that they look for: the
// agent's memory does not depend on a pod's table. The agent serves other pods meanwhile, and
// the pod's DEL like any other (t7b.sh).
func TestLongTablesInPodCostNoMemory(t *testing.T) {
	n := newNode(t, plain)
	a := n.add("a")
	n.add("b")
	routes := filepath.Join(t.TempDir(), "routes")
	var batch strings.Builder
	for i := range podRoutes {
		fmt.Fprintf(&batch, "route add 20.%d.%d.%d/32 dev eth0 proto 98\n", i>>16, i>>8&255, i&255)
	}
	must(t, os.WriteFile(routes, []byte(batch.String()), 0o600))
	nettest.Run(t, a.at, "ip -batch "+routes)

	var busy sync.WaitGroup
	for range 8 {
		busy.Go(func() {
			if err := n.check(a); err != nil {
				t.Error(err)
			}
		})
	}
	comes := n.add("comes")
	busy.Wait()
	if _, err := n.Berth(t.Context(), "audit", "--pods"); err != nil {
		t.Error(err)
	}
	if peak := n.peak(); peak > mostPeak {
		t.Errorf("the agent's memory was %d MiB, want at most %d: a pod decides", peak>>20, mostPeak>>20)
	}
	nettest.Ping(t, nil, comes.ip4)
	n.del(a, wait)
	n.wantGone()
}

// peak is the most that the agent has had resident: VmHWM, in bytes.
func (n *node) peak() int64 {
	n.t.Helper()
	st, err := n.API.Status(n.t.Context(), "")
	must(n.t, err)
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", st.PID))
	must(n.t, err)
	_, after, _ := strings.Cut(string(status), "\nVmHWM:")
	value, _, _ := strings.Cut(after, " kB\n")
	kb, err := strconv.ParseInt(strings.TrimSpace(value), 10, 64)
	must(n.t, err)
	return kb << 10
}

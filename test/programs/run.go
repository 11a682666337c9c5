package programs

import (
	"context"
	"testing"
	"time"

	"github.com/berth-net/berth/internal/nettest"
)

// Run is StartAgent for a test. The agent ends with the test.
func Run(t testing.TB, bin, root string, pools ...string) *Agent {
	t.Helper()
	agent, err := StartAgent(t.Context(), bin, root, pools...)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("berthd's last words:\n%s", agent.LastWords())
		}
		if err := agent.Stop(); err != nil {
			t.Error(err)
		}
	})
	nettest.Must(t, err)
	return agent
}

// NothingLeft waits until the node is as it was when empty was taken, which should be soon
// after DEL, and fails the test if that does not happen. Then it has the agent audit.
func (a *Agent) NothingLeft(t testing.TB, empty nettest.State) {
	t.Helper()
	diff := ""
	for end := time.Now().Add(nettest.Deadline); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if diff = empty.Diff(nettest.Snapshot(t, nil)); diff == "" {
			break
		}
	}
	if diff != "" {
		t.Errorf("left behind after %s:\n%s", nettest.Deadline, diff)
	}
	a.Audit(t)
}

// Audit fails the test if the agent finds anything left over or missing.
func (a *Agent) Audit(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), nettest.Deadline) // works also when the test has ended
	defer cancel()
	if _, err := a.Berth(ctx, "audit"); err != nil {
		t.Error(err)
	}
}

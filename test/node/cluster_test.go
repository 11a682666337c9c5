package node

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// An agent whose cluster never answers serves all the same: `berth status`, by which the DaemonSet's probes judge it, succeeds,
// and says what is missing. So no probe ends an agent that only waits for the API server.
func TestClusterIsSilent(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0") // takes connections, and never says anything
	must(t, err)
	defer silent.Close()
	a := newAgent(t, nil)
	config := filepath.Join(t.TempDir(), "kubeconfig")
	must(t, os.WriteFile(config, fmt.Appendf(nil, `{"clusters": [{"name": "c", "cluster": {"server": "https://%s"}}],
		"contexts": [{"name": "c", "context": {"cluster": "c"}}], "current-context": "c"}`, silent.Addr()), 0o600))
	a.configure(fmt.Sprintf("kubernetes: {node: n1, kubeconfig: %s}\n", config))
	a.start()
	defer a.remove()
	if out, code := a.berth("status"); code != 0 || !strings.Contains(out, "the cluster has given this node no addresses") {
		t.Errorf("exit code %d:\n%s", code, out)
	}
}

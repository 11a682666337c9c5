package cluster

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/berth-net/berth/internal/nettest"
)

// said returns what the pods of a node have printed, as the kubelet keeps it.
func (n *node) said() string {
	logs, err := filepath.Glob(filepath.Join(n.disk, "var/log/pods/*/pod/*.log"))
	must(n.t, err)
	var all strings.Builder
	for _, l := range logs {
		raw, _ := os.ReadFile(l) // its pod may be gone
		all.Write(raw)
	}
	return all.String()
}

// The API server ends while pods do. The kubelet ends their sandboxes, and the agent detaches them at once. Once the API server is back, new
// pods come.
func TestAPIServerAway(t *testing.T) {
	c := startCluster(t, 1)
	empty, n := c.states(), c.nodes[0]
	const pods = 4
	c.deploy("web", pods, 5*time.Second)
	c.mustKubectl("delete", "deployment", "web")
	nettest.Eventually(t, "the kubelet to tell the pods to end", func() bool { return strings.Count(n.said(), "ending") == pods })
	c.api.kill()
	began := time.Now()
	if left := n.attachments(); left != pods {
		t.Errorf("%d pods were attached when the API server ended, want %d", left, pods)
	}
	nettest.Eventually(t, "the pods to be detached", func() bool { return n.attachments() == 0 })
	t.Logf("the pods, which go on for 5 s, are detached %s after the API server's end", time.Since(began).Round(10*time.Millisecond))
	c.nothingLeft(empty)

	c.api.start()
	c.api.until("the API server to be ready again", c.ready)
	c.reach(c.deploy("next", pods, 0))
	c.mustKubectl("delete", "deployment", "next", "--cascade=foreground", "--timeout=60s")
	c.nothingLeft(empty)
}

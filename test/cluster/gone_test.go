package cluster

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berth-net/berth/internal/nettest"
)

// cidrs returns the CIDRs that the cluster has given to a node's pods.
func (c *control) cidrs(node string) []string {
	c.t.Helper()
	var n struct{ Spec struct{ PodCIDRs []string } }
	c.get(&n, "node", node)
	return n.Spec.PodCIDRs
}

// leadsTo reports whether the node's routes to other nodes are those to these CIDRs.
func (n *node) leadsTo(cidrs []string) bool {
	ways := n.ways()
	return len(ways) == len(cidrs) && !slices.ContainsFunc(cidrs, func(c string) bool {
		return !slices.ContainsFunc(ways, func(w string) bool { return strings.Contains(w, " "+c+" ") })
	})
}

// A node is deleted from the cluster, and the routes to its pods go. It comes back while the agent of the other node is
// down, gets other CIDRs, and its new pods are reached by these.
func TestNodeGoesAndComesBack(t *testing.T) {
	c := startCluster(t, 2)
	stays, goes := c.nodes[0], c.nodes[1]
	c.reach(c.deploy("web", 4, 0))
	was := c.cidrs(goes.name)
	if !stays.leadsTo(was) {
		t.Errorf("the routes do not lead to %v: %q", was, stays.ways())
	}
	goes.kubelet.kill()
	began := time.Now()
	c.mustKubectl("delete", "node", goes.name)
	nettest.Eventually(t, "the routes to the node to go", func() bool { return len(stays.ways()) == 0 })
	t.Logf("the routes to the node are gone %s after it was to be deleted", time.Since(began).Round(10*time.Millisecond))
	stays.berth("audit")

	stays.berthd.kill()
	goes.kubelet.start()
	c.waitReady(goes)
	now := c.cidrs(goes.name)
	t.Logf("the node had %v and has %v", was, now)
	stays.berthd.start()
	began = time.Now()
	nettest.Eventually(t, "routes to the node's CIDRs", func() bool { return stays.leadsTo(now) })
	t.Logf("the routes are there %s after the agent's start", time.Since(began).Round(10*time.Millisecond))
	nettest.Eventually(t, "the agent of the node to be ready for pods", func() bool {
		out, err := goes.run(filepath.Join(goes.bin, "berth"), "pools")
		return err == nil && strings.Contains(out, now[0]) && goes.ails() == ""
	})
	c.mustKubectl("rollout", "restart", "deployment/web")
	c.mustKubectl("rollout", "status", "deployment/web", "--timeout=60s")
	nettest.Eventually(t, "the former pods to be gone", func() bool { return len(c.pods("web")) == 4 })
	c.reach(c.pods("web"))
	c.mustKubectl("delete", "deployment", "web", "--cascade=foreground", "--timeout=60s")
	for _, n := range c.nodes {
		nettest.Eventually(t, n.name+" to have released all attachments", n.released)
		n.berth("audit")
	}
}

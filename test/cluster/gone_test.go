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
	return c.object(node).Spec.PodCIDRs
}

// leadsTo reports whether the node's routes to other nodes are those to these CIDRs.
func (n *node) leadsTo(cidrs []string) bool {
	ways := n.ways()
	return len(ways) == len(cidrs) && !slices.ContainsFunc(cidrs, func(c string) bool {
		return !slices.ContainsFunc(ways, func(w string) bool { return strings.Contains(w, " "+c+" ") })
	})
}

// cidrsOf returns the CIDRs that a node's pods have addresses of.
func (c *cluster) cidrsOf(n *node, way addressing) (cidrs []string) {
	c.t.Helper()
	if way == ofNodes {
		return c.cidrs(n.name)
	}
	for _, b := range c.share(n.name).Spec.Blocks {
		cidrs = append(cidrs, b.CIDR)
	}
	return cidrs
}

// A node is deleted from the cluster, and the routes to its pods go. It comes back while the agent of the other node is
// down, gets other addresses for its pods, and its new pods are reached by these.
func TestNodeGoesAndComesBack(t *testing.T) {
	c := startBothWays(t, 2)
	for way := range c.ways() {
		c.goesAndComesBack(way)
	}
}

// goesAndComesBack: a node that has blocks of pools is drained before it goes, because its blocks are free then: others get them. Its
// agent goes on, and lets go of them by a sweep. Until then the node has no way to pods that have got addresses of these blocks.
func (c *cluster) goesAndComesBack(way addressing) {
	t, stays, goes := c.t, c.nodes[0], c.nodes[1]
	t.Helper()
	if way == ofPools {
		c.sweep("1s")
		c.waitWhole()
	}
	c.reach(c.deploy("web", 4, 0))
	was := c.cidrsOf(goes, way)
	if !stays.leadsTo(was) {
		t.Errorf("the routes do not lead to %v: %q", was, stays.ways())
	}
	if way == ofPools {
		c.mustKubectl("drain", goes.name, "--timeout=60s")
	}
	goes.kubelet.kill()
	began := time.Now()
	c.mustKubectl("delete", "node", goes.name)
	nettest.Eventually(t, "the routes to the node to go", func() bool { return len(stays.ways()) == 0 })
	t.Logf("the routes to the node are gone %s after it was to be deleted", time.Since(began).Round(10*time.Millisecond))
	stays.berth("audit")
	if way == ofPools {
		cidr, address := c.join(way, "other", 50)
		nettest.Eventually(t, "a way to the other node", func() bool { return stays.leads(cidr, address) })
		t.Logf("another node has %s", cidr)
	}

	stays.berthd.kill()
	goes.kubelet.start()
	c.waitReady(goes)
	var now []string
	nettest.Eventually(t, "the node to be given addresses", func() bool { now = c.cidrsOf(goes, way); return len(now) >= 2 })
	t.Logf("the node had %v and has %v", was, now)
	if way == ofPools {
		c.mustKubectl("delete", "node", "other")
	}
	stays.berthd.start()
	began = time.Now()
	nettest.Eventually(t, "routes to the node's CIDRs", func() bool { return stays.leadsTo(c.cidrsOf(goes, way)) })
	t.Logf("the routes are there %s after the agent's start", time.Since(began).Round(10*time.Millisecond))
	nettest.Eventually(t, "the agent of the node to be ready for pods", func() bool {
		out, err := goes.run(filepath.Join(goes.bin, "berth"), "pools")
		return err == nil && strings.Contains(out, now[0]) && goes.ails() == ""
	})
	c.mustKubectl("rollout", "restart", "deployment/web")
	c.mustKubectl("rollout", "status", "deployment/web", "--timeout=60s")
	web := c.settle("after the node has come back", "web", 4)
	nettest.Eventually(t, "each node to lead to all that the other one has", func() bool {
		return stays.leadsTo(c.cidrsOf(goes, way)) && goes.leadsTo(c.cidrsOf(stays, way))
	})
	c.reach(web)
	c.mustKubectl("delete", "deployment", "web", "--cascade=foreground", "--timeout=60s")
	for _, n := range c.nodes {
		nettest.Eventually(t, n.name+" to have released all attachments", n.released)
		n.berth("audit")
	}
}
